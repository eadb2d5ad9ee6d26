"""The update: it learns, compiles once, moves everything, follows its key."""

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
import tiny_parts

from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

pytestmark = pytest.mark.usefixtures('usual_kernels')


@pytest.fixture(scope='module', autouse=True)
def _compiled_once(tmp_path_factory):
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


def _augmentation(key, batch):
  """Normalises, adds noise by the key, smooths."""
  image = batch['image']
  noise = jax.random.normal(key, image.shape) / 100
  hot = jax.nn.one_hot(batch['label'], tiny.CLASSES)
  targets = optax.smooth_labels(hot, 0.1)
  return image / 255.0 + noise, targets


def _setup(augmentation=_augmentation, tx=None):
  model, tx = tiny.Tiny(), tx or optax.adamw(1e-2)
  state = jax.jit(
      lambda: state_lib.create(model, tx, jax.random.key(0), (6, 7, 3))
  )()
  data = tiny.arrays(0, 8)
  batch = {'image': jnp.asarray(data.image), 'label': jnp.asarray(data.label)}
  return step_lib.make_train_step(model, tx, augmentation), state, batch


def test_learns_compiles_once_and_moves_everything():
  train_step, state, batch = _setup()
  train_step = jax.jit(chex.assert_max_traces(train_step, n=1))
  initial, losses = state, []
  for _ in range(20):
    state, metrics = train_step(state, batch, jax.random.key(1))
    losses.append(float(metrics['loss']))
  assert int(state.step) == 20
  assert losses[-1] < losses[0]
  chex.assert_tree_all_finite(state)
  moved = jax.tree.map(
      lambda a, b: bool(jnp.any(a != b)),
      (initial.params, initial.batch_stats),
      (state.params, state.batch_stats),
  )
  assert all(jax.tree.leaves(moved)), moved


class _Linear(nn.Module):
  """A model without BatchNorm, as those in the skeletons of DeiT and Swin."""

  @nn.compact
  def __call__(self, x, *, train: bool):
    del train
    return nn.Dense(tiny.CLASSES, name='head')(x.mean((1, 2)))


def test_a_model_without_batch_norm_trains():
  model, tx = _Linear(), optax.sgd(1e-2)
  train_step = step_lib.make_train_step(model, tx, _augmentation)

  def first_step(batch, key):
    state = state_lib.create(model, tx, key, (6, 7, 3))
    return state, train_step(state, batch, key)[0]

  batch = {'image': jnp.zeros((2, 6, 7, 3)), 'label': jnp.array([0, 1])}
  old, new = jax.eval_shape(first_step, batch, jax.random.key(0))
  assert old.batch_stats == new.batch_stats == {}


def test_the_average_follows_parameters_and_statistics():
  """After each update, in float64; it begins at the initial weights."""
  model, tx = tiny.Tiny(), optax.adamw(1e-1)
  create = jax.jit(
      lambda: state_lib.create(
          model, tx, jax.random.key(0), (6, 7, 3), ema=True
      )
  )
  data = tiny.arrays(0, 8)
  batch = {'image': jnp.asarray(data.image), 'label': jnp.asarray(data.label)}
  state = create()
  chex.assert_trees_all_equal(state.ema, state.variables)
  mean = jax.tree.map(np.float64, state.variables)
  train_step = jax.jit(
      step_lib.make_train_step(model, tx, _augmentation, ema_decay=0.75),
      donate_argnums=0,
  )
  for _ in range(3):
    state, _ = train_step(state, batch, jax.random.key(1))
    mean = jax.tree.map(
        lambda m, v: 0.75 * m + 0.25 * np.float64(v), mean, state.variables
    )
    chex.assert_trees_all_close(state.ema, mean, rtol=1e-5, atol=1e-6)
  assert _setup()[1].ema is None


def test_draws_follow_key_and_step():
  train_step, state, batch = _setup()
  train_step = jax.jit(train_step)
  key = jax.random.key(1)
  same = [train_step(state, batch, key)[1]['loss'] for _ in range(2)]
  assert same[0] == same[1]
  later = train_step(state.replace(step=state.step + 1), batch, key)[1]['loss']
  other = train_step(state, batch, jax.random.key(2))[1]['loss']
  assert len({float(same[0]), float(later), float(other)}) == 3


class _Root:
  """A model whose logits are all sqrt(w): at 0 the slope is infinite."""

  def __init__(self):
    self.keys = []

  def apply(self, variables, image, *, train, rngs, mutable):
    assert train and mutable == ['batch_stats']
    self.keys.append(rngs['dropout'])
    root = jnp.sqrt(variables['params']['w']) * jnp.arange(3.0)
    return jnp.tile(root, (len(image), 1)), {'batch_stats': {}}


def _root_step(model, augmentation, *, step, w, loss=step_lib.class_loss):
  tx = optax.sgd(1.0)
  params = {'w': jnp.float32(w)}
  state = state_lib.TrainState(
      step=jnp.int32(step),
      params=params,
      batch_stats={},
      opt_state=tx.init(params),
  )
  batch = {'image': jnp.zeros((2, 4, 5, 3)), 'label': jnp.array([0, 1])}
  train_step = step_lib.make_train_step(model, tx, augmentation, loss)
  # Not jitted, so that what is recorded is a value.
  return train_step(state, batch, jax.random.key(1))[1]


def test_augmentation_dropout_and_loss_draw_from_different_streams():
  model, keys = _Root(), []

  def augmentation(key, batch):
    keys.append(key)
    return _augmentation(key, batch)

  of_loss = []

  def loss(apply, image, targets, key):
    of_loss.append(key)
    return step_lib.class_loss(apply, image, targets, key)

  for step in (0, 1):
    _root_step(model, augmentation, step=step, w=1.0, loss=loss)
  told = [step_lib.augment_key(jax.random.key(1), step) for step in (0, 1)]
  data = [jax.random.key_data(key).tolist() for key in keys]
  assert data == [jax.random.key_data(key).tolist() for key in told]
  data += [jax.random.key_data(key).tolist() for key in model.keys + of_loss]
  assert len({tuple(words) for words in data}) == 6


def test_a_gradient_that_is_not_finite_is_told():
  metrics = _root_step(_Root(), _augmentation, step=0, w=0.0)
  assert np.isfinite(metrics['loss']) and not bool(metrics['finite'])


def test_metrics_by_hand():
  """Plain gradient descent on a known loss: uniform logits, log 3."""
  tx = optax.sgd(0.5)
  train_step, state, batch = _setup(tx=tx)
  head = state.params['head']
  params = {**state.params, 'head': jax.tree.map(jnp.zeros_like, head)}
  new, metrics = jax.jit(train_step)(
      state.replace(params=params), batch, jax.random.key(1)
  )
  assert metrics['loss'] == pytest.approx(np.log(3), rel=1e-6)
  # All logits are equal, so argmax takes class 0.
  share = float(np.mean(np.asarray(batch['label']) == 0))
  assert metrics['accuracy'] == pytest.approx(share)
  # The bias of the head gets mean(p - target), and a step of -0.5 times that.
  targets = 0.9 * np.eye(3)[np.asarray(batch['label'])] + 0.1 / 3
  gradient = (1 / 3 - targets).mean(0)
  np.testing.assert_allclose(
      new.params['head']['bias'], -0.5 * gradient, rtol=1e-5, atol=1e-7
  )
  moved = jax.tree.map(lambda a, b: (a - b) / 0.5, params, new.params)
  assert metrics['grad_norm'] == pytest.approx(
      float(optax.tree.norm(moved)), rel=1e-4
  )
  assert bool(metrics['finite'])


@pytest.mark.parametrize('what', ['loss', 'gradient'])
def test_a_step_that_is_skipped_was_as_if_it_were_not(what):
  """But for its number: what comes after is drawn and learnt as without it."""

  def augmentation(key, batch):
    image, targets = _augmentation(key, batch)
    bad = batch['bad']
    if what == 'loss':
      return image.at[0, 0, 0, 0].add(jnp.where(bad, jnp.nan, 0)), targets
    # The loss is finite, and its slope is not.
    slope = jnp.where(bad, 1e38, 1.0)
    return image * slope, targets

  model, tx = tiny.Tiny(), optax.adamw(1e-1)
  state = jax.jit(
      lambda: state_lib.create(
          model, tx, jax.random.key(0), (6, 7, 3), ema=True
      )
  )()
  data = tiny.arrays(0, 8)
  batch = {'image': jnp.asarray(data.image), 'label': jnp.asarray(data.label)}
  train_step = jax.jit(
      step_lib.make_train_step(
          model, tx, augmentation, ema_decay=0.75, skip_nonfinite=True
      )
  )
  key = jax.random.key(1)

  def run(bads, state):
    for bad in bads:
      state, metrics = train_step(state, {**batch, 'bad': bad}, key)
      assert bool(metrics['finite']) != bad
    return state

  with_it = run((False, True, False), state)
  without = run((False,), state)
  without = run((False,), without.replace(step=without.step + 1))
  assert int(with_it.step) == 3
  chex.assert_trees_all_equal(with_it, without)
  # A batch that is good is learnt from as without the policy.
  plain = jax.jit(
      step_lib.make_train_step(model, tx, augmentation, ema_decay=0.75)
  )
  chex.assert_trees_all_equal(
      run((False,), state), plain(state, {**batch, 'bad': False}, key)[0]
  )


def test_a_loss_that_is_not_finite_is_told():
  def broken(key, batch):
    image, targets = _augmentation(key, batch)
    return image.at[0, 0, 0, 0].set(jnp.nan), targets

  train_step, state, batch = _setup(broken)
  train_step = jax.jit(train_step)
  assert not bool(train_step(state, batch, jax.random.key(1))[1]['finite'])
