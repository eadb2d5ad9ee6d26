"""Where tokens lie on an image."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import gswinrmt_jax
from gswinrmt_jax.maps import grid


def test_extents_are_those_of_the_model():
  """Odd sizes too; and every pixel belongs to a token of the map."""
  size = (75, 106)
  model = gswinrmt_jax.create_model(
      'rmt_compact', num_classes=2, depths=(1, 1, 1, 1)
  )
  features, _ = jax.eval_shape(
      functools.partial(model.init_with_output, train=False, method='features'),
      jax.random.key(0),
      jax.ShapeDtypeStruct((1, *size, 3), jnp.float32),
  )
  assert model.arch.strides == (4, 8, 16, 32)
  for stage, stride in enumerate(model.arch.strides, start=1):
    height, width = features[f'stage{stage}'].shape[1:3]
    assert grid.extents(size, stride) == (height, width)
    assert grid.token((105, 74), stride) == (height - 1, width - 1)


def test_a_point_is_x_then_y_and_a_token_row_then_column():
  assert grid.token((17, 40), 4) == (10, 4)
  assert grid.token((31, 32), 32) == (1, 0)


def test_upsample_is_bilinear_between_the_middles_and_cut():
  """Middles at 1.5 and 5.5 pixels: in steps of a quarter between them."""
  values = jnp.array([[0.0, 4.0], [8.0, 12.0]])
  line = np.array([0, 0, 0.5, 1.5, 2.5, 3.5, 4])  # the eighth is cut
  out = grid.upsample(values, 4, (5, 7))
  assert out.shape == (5, 7)
  np.testing.assert_allclose(out[0], line, atol=1e-6)
  np.testing.assert_allclose(out[:, 0], 2 * line[:5], atol=1e-6)
