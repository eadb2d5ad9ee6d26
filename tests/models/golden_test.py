"""Tests logits and gradients against values that agreed with the oracle.

Later versions must give the same. `python tests/golden_test.py` rewrites the
file, which only a deliberate change of an equation justifies.
"""

import pathlib

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import random_variables

import gswinrmt_jax

_FILE = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden.npz'
_IMAGES = (3, 45, 64, 3)
_LABELS = (4, 0, 2)
NAMES = ('rmt_compact', 'retention_compact', 'swat_compact')
# Gradients stored in full: one of each kind, some in one system only.
_WHOLE = (
    'stem/conv0/kernel',
    'stage1/block01/position/kernel',
    'stage1/block01/attention/query/kernel',
    'stage1/block01/attention/decay_logit',
    'stage1/block01/attention/gate/bias',
    'stage1/block01/attention/value_gate/bias',
    'stage2/block00/attention/local/kernel',
    'stage3/block00/ffn/position/kernel',
    'stage3/block00/ffn_scale',
    'head/kernel',
)


def _compute(name):
  """Returns eval logits, the loss, gradient norms, and some full gradients."""
  model = gswinrmt_jax.create_model(
      name,
      num_classes=5,
      widths=(8, 16, 24, 32),
      depths=(2, 1, 1, 1),
      num_heads=(2, 2, 3, 4),
      window_size=0 if name.startswith('rmt') else 4,
      drop_path_rate=0.0,
  )
  images = random_variables.image(_IMAGES)
  variables = random_variables.nested(model, _IMAGES)

  @jax.jit
  def run(variables):
    def loss_fn(params):
      logits, _ = model.apply(
          {**variables, 'params': params},
          images,
          train=True,
          mutable=['batch_stats'],
      )
      return optax.softmax_cross_entropy_with_integer_labels(
          logits, jnp.array(_LABELS)
      ).mean()

    logits = model.apply(variables, images, train=False)
    return logits, jax.value_and_grad(loss_fn)(variables['params'])

  logits, (loss, grads) = jax.device_get(run(variables))
  grads = traverse_util.flatten_dict(grads, sep='/')
  result = {'logits': logits, 'loss': loss}
  for path, grad in grads.items():
    result[f'norm/{path}'] = np.linalg.norm(grad.ravel())
    if path in _WHOLE:
      result[f'grad/{path}'] = grad
  return {f'{name}/{key}': np.asarray(value) for key, value in result.items()}


@pytest.mark.parametrize('name', NAMES)
def test_logits_and_gradients_are_the_golden_ones(name):
  golden = np.load(_FILE)
  actual = _compute(name)
  assert actual.keys() == {k for k in golden.files if k.startswith(name + '/')}
  # Float32 sums may run in another order. The true gradient of a bias before a
  # BatchNorm is zero, so only rounding is left of it.
  for key, value in actual.items():
    np.testing.assert_allclose(
        value, golden[key], rtol=2e-4, atol=2e-5, err_msg=key
    )
    *_, module, leaf = key.split('/')
    before_norm = leaf == 'bias' and module.startswith('conv')
    # Every parameter has a gradient. (At 32 pixels the last stage is 1x1, where
    # attention is constant; here it is 2x2.)
    if '/norm/' in key and not before_norm:
      assert value > 1e-6, key


if __name__ == '__main__':
  arrays = {}
  for name in NAMES:
    arrays |= _compute(name)
  np.savez_compressed(_FILE, **arrays)
