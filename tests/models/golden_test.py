"""Tests losses and gradients against values of an earlier version.

Later versions must give the same, under the same names of parameters: old
checkpoints and the weight-decay mask rely on them. `oracle_model_test` compares
logits with the equations, `released_rmt_test` the gradients of RMT with the
authors' code. `python tests/models/golden_test.py` rewrites the file, which
only a deliberate change of an equation justifies.
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
NAMES = ('retention_compact', 'swat_compact')
# Gradients stored in full: one of each kind, some in one system only.
_WHOLE = (
    'stem/conv0/kernel',
    'stage1/block01/position/kernel',
    'stage1/block01/attention/query/kernel',
    'stage1/block01/attention/decay_logit',
    'stage1/block01/attention/gate/bias',
    'stage1/block01/attention/value_gate/bias',
    'stage2/block00/attention/local/kernel',
    'stage2/block00/ffn/position/kernel',
    'stage2/block00/ffn_scale',
    'head/kernel',
)


def _compute(name):
  """Returns the loss, the norm of each gradient, and some full gradients."""
  model = gswinrmt_jax.create_model(
      name,
      num_classes=5,
      widths=(8, 12),
      depths=(2, 1),
      num_heads=(2, 3),
      mlp_ratios=(4.0, 4.0),
      layer_scale=(1e-2, 1e-2),
      decay_ranges=(4.0, 6.0),
      window_size=4,
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

    return jax.value_and_grad(loss_fn)(variables['params'])

  loss, grads = jax.device_get(run(variables))
  result = {'loss': loss}
  for path, grad in traverse_util.flatten_dict(grads, sep='/').items():
    result[f'norm/{path}'] = np.linalg.norm(grad.ravel())
    if path in _WHOLE:
      result[f'grad/{path}'] = grad
  return {f'{name}/{key}': np.asarray(value) for key, value in result.items()}


@pytest.mark.parametrize('name', NAMES)
def test_loss_and_gradients_are_the_golden_ones(name):
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
    # Every parameter has a gradient.
    if '/norm/' in key and not before_norm:
      assert value > 1e-6, key


if __name__ == '__main__':
  arrays = {}
  for name in NAMES:
    arrays |= _compute(name)
  np.savez_compressed(_FILE, **arrays)
