"""Grad-CAM, against its formula with the head differentiated by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import random_variables

import gswinrmt_jax
from gswinrmt_jax.maps import grad_cam

LABEL = 1


def _by_hand(params, activation):
  """`logit = mean_hw(LN(A)) w + b`, so with z = LN(A) before its scale s:

  dlogit / dA = (g - mean(g) - z mean(g z)) / deviation,   g = s w / (h w)
  """
  activation = np.asarray(activation, np.float64)
  height, width, _ = activation.shape
  mean = activation.mean(-1, keepdims=True)
  deviation = np.sqrt(activation.var(-1, keepdims=True) + 1e-6)
  z = (activation - mean) / deviation
  scale = np.asarray(params['norm']['scale'], np.float64)
  weight = np.asarray(params['head']['kernel'], np.float64)[:, LABEL]
  g = scale * weight / (height * width)
  gradient = g - g.mean() - z * (g * z).mean(-1, keepdims=True)
  importance = (gradient / deviation).mean((0, 1))
  return np.maximum((activation * importance).sum(-1), 0)


def test_the_last_stage_by_hand():
  """On a map that no image gave: two samples, which do not mix."""
  model = gswinrmt_jax.create_model(
      'retention_compact',
      num_classes=4,
      widths=(4, 4, 4, 12),
      depths=(1, 1, 1, 1),
      num_heads=(1, 1, 1, 1),
      depthwise_impl='conv',
  )
  image = jnp.zeros((2, 40, 70, 3))
  variables = random_variables.nested(model, image.shape)
  activation = random_variables.image((2, 2, 3, 12))
  # The class may be traced, so that another one compiles nothing.
  cam = jax.jit(lambda *arguments: grad_cam.grad_cam(model, *arguments, 4))(
      variables, image, activation, jnp.int32(LABEL)
  )
  expected = [_by_hand(variables['params'], a) for a in activation]
  assert np.max(expected) > 1e-3
  np.testing.assert_allclose(cam, expected, rtol=1e-4, atol=1e-6)
