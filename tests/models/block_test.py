"""Tests the block: stochastic depth, LayerScale at the start.

`oracle_model_test` compares its equation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import random_variables

from gswinrmt_jax.models import architecture, block

C = 8
ARCH = architecture.Architecture(
    widths=(C, C, C, C), num_heads=(2, 2, 2, 2), window_size=3
)
X = random_variables.image((3, 4, 5, C))


def _params(module):
  shapes = jax.eval_shape(module.init, jax.random.key(0), X)
  return random_variables.of_shapes(shapes)['params']


def test_stochastic_depth_drops_whole_branches_of_an_image():
  """Each branch of each image is dropped, or scaled by 1 / (1 - p)."""
  module = block.Block(ARCH, 0, True, jnp.float32, drop_rate=0.25)
  params, whole = _params(module), block.Block(ARCH, 0, True, jnp.float32)

  @jax.jit
  def scaled(attention, ffn):
    """Scales the branches of the block without stochastic depth."""
    scales = {
        'attention_scale': attention * params['attention_scale'],
        'ffn_scale': ffn * params['ffn_scale'],
    }
    return whole.apply({'params': params | scales}, X)

  expected = np.stack(
      [scaled(one, other) for one in (0, 4 / 3) for other in (0, 4 / 3)]
  )
  seen = np.zeros(4, int)
  apply = jax.jit(module.apply)
  for seed in range(40):
    y = apply({'params': params}, X, rngs={'dropout': jax.random.key(seed)})
    for image, candidates in zip(
        np.asarray(y), expected.swapaxes(0, 1), strict=True
    ):
      errors = np.abs(image - candidates).max((1, 2, 3))
      assert errors.min() < 5e-5
      seen[errors.argmin()] += 1
  # From neither kept to both kept, within 3 standard deviations of 120 draws.
  shares = np.array([1, 3, 3, 9]) / 16
  assert (np.abs(seen / 120 - shares) < 3 * np.sqrt(shares / 120)).all(), seen


def test_layer_scale_starts_at_its_value():
  module = block.Block(ARCH, 0, False, jnp.float32)

  @jax.jit  # compiles no draw
  def start(key):
    params = module.init(key, X)['params']
    return params['attention_scale'], params['ffn_scale']

  for scale in start(jax.random.key(0)):
    np.testing.assert_array_equal(scale, np.float32(np.full(C, 1e-2)))
