"""Grad-CAM, against its formula with the head differentiated by hand."""

import jax.numpy as jnp
import numpy as np
import quick
import random_variables

import gswinrmt_jax
from gswinrmt_jax.maps import grad_cam

SIZE = (40, 70)
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
  model = gswinrmt_jax.create_model(
      'retention_compact',
      num_classes=4,
      widths=(8, 8, 8, 12),
      depths=(1, 1, 1, 1),
      num_heads=(1, 1, 2, 2),
      depthwise_impl='conv',
  )
  variables = random_variables.nested(model, (1, *SIZE, 3))
  image = random_variables.image((*SIZE, 3))

  @quick.jit
  def run(variables, image):
    features = model.apply(
        variables, image[None], train=False, method='features'
    )
    # The class may be traced, so that another one compiles nothing.
    cam = grad_cam.grad_cam(model, variables, image, jnp.int32(LABEL), 4)
    return cam, features['stage4'][0]

  cam, activation = run(variables, image)
  assert cam.shape == (2, 3)
  assert (cam > 0).any()
  np.testing.assert_allclose(
      cam, _by_hand(variables['params'], activation), rtol=1e-4, atol=1e-6
  )
