"""Several updates in one call."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from gswinrmt_jax.train import dispatch
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

_STEPS, _BATCH = 4, 3
pytestmark = pytest.mark.usefixtures('usual_kernels')


def _augmentation(key, batch):
  """Draws, so that a step with another number makes another update."""
  image = batch['image'] / 255.0 + jax.random.uniform(key)
  return image, jax.nn.one_hot(batch['label'], tiny.CLASSES)


@pytest.fixture(scope='module')
def setup():
  """Returns the first state, the jitted `advance`, and all batches."""
  model, tx = tiny.Tiny(), optax.sgd(0.1, momentum=0.9)
  create = jax.jit(
      lambda: state_lib.create(model, tx, jax.random.key(0), (6, 7, 3))
  )
  step = step_lib.make_train_step(model, tx, _augmentation)
  data = tiny.arrays(0, _STEPS * _BATCH)
  batches = {
      'image': data.image.reshape(_STEPS, _BATCH, 6, 7, 3),
      'label': data.label.reshape(_STEPS, _BATCH),
  }
  return create(), jax.jit(dispatch.make_advance(step)), batches


def _supply(batches, *steps, most=_STEPS, behind=0):
  """The named steps first, then `behind` in the places of others."""
  filled = {}
  for name, array in batches.items():
    filled[name] = np.full((most, *array.shape[1:]), behind, array.dtype)
    filled[name][: len(steps)] = array[list(steps)]
  return dispatch.Supply(np.int32(len(steps)), filled, {})


def _run(setup, *supplies):
  state, advance, _ = setup
  losses = []
  for supply in supplies:
    state, metrics = advance(state, supply, jax.random.key(1))
    (most,) = {len(array) for array in supply.batches.values()}
    assert metrics['loss'].shape == (most,)
    losses += metrics['loss'][: supply.count].tolist()
  return state, losses


@pytest.fixture(scope='module')
def whole(setup):
  return _run(setup, _supply(setup[2], 0, 1, 2, 3))


@pytest.mark.parametrize('cut', [1, 2, 3])
def test_where_dispatches_are_cut_changes_no_bit(setup, whole, cut):
  batches = setup[2]
  parts = (
      _supply(batches, *range(cut), behind=7),
      _supply(batches, *range(cut, _STEPS), behind=250),
  )
  state, losses = _run(setup, *parts)
  assert int(state.step) == _STEPS
  chex.assert_trees_all_equal(state, whole[0])
  assert losses == whole[1]


def test_the_loop_makes_the_updates_of_single_steps(setup, whole):
  """Another program: the last bit may differ, and no more."""
  batches = setup[2]
  singles = [_supply(batches, step, most=1) for step in range(_STEPS)]
  state, losses = _run(setup, *singles)
  chex.assert_trees_all_close(state, whole[0], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(losses, whole[1], rtol=1e-6)
  assert len(set(losses)) == _STEPS


@pytest.mark.parametrize('most', [1, _STEPS])
def test_batches_of_rows_are_the_records(setup, most):
  """All bits, since a gather rounds nothing."""
  batches = setup[2]
  rng = np.random.default_rng(0)
  order = rng.permutation(_STEPS * _BATCH).astype(np.int32)
  whole = {k: a.reshape(-1, *a.shape[2:]) for k, a in batches.items()}
  records = {name: jnp.zeros_like(a) for name, a in whole.items()}
  for name, array in whole.items():
    records[name] = records[name].at[order].set(array)
  rows = order.reshape(_STEPS, _BATCH)[:most]
  supply = dispatch.Supply(np.int32(most), {'row': rows}, records)
  expected = _supply(batches, *range(most), most=most)
  for index in range(most):
    batch, want = supply.batch(index), expected.batch(index)
    for name in ('image', 'label'):
      np.testing.assert_array_equal(batch[name], want[name])
      assert batch[name].dtype == want[name].dtype
  chex.assert_trees_all_equal(_run(setup, supply), _run(setup, expected))
