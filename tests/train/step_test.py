"""Tests the update, its metrics and the EMA against values by hand."""

import functools

import chex
import compiling
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import mix
from gswinrmt_jax.models import layers
from gswinrmt_jax.train import losses, optimizer
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

pytestmark = pytest.mark.usefixtures('compiled_once')


def _augmentation(key, batch, step):
  """Normalises, adds noise drawn from the key, and smooths the labels."""
  image = batch['image']
  noise = jax.random.normal(key, image.shape) / 100
  hot = jax.nn.one_hot(batch['label'], tiny.CLASSES)
  targets = optax.smooth_labels(hot, 0.1)
  return image / 255.0 + noise, targets


def _setup(tx=None, *, model=None, augmentation=_augmentation, count=8, **how):
  """Returns the compiled step, the state before it and a batch."""
  model, tx = model or tiny.Tiny(), tx or optax.adamw(1e-2)
  state = jax.jit(
      lambda: state_lib.create(
          model, tx, jax.random.key(0), (6, 7, 3), ema='ema_decay' in how
      )
  )()
  data = tiny.arrays(0, count)
  batch = {'image': jnp.asarray(data.image), 'label': jnp.asarray(data.label)}
  train_step = step_lib.make_train_step(model, tx, augmentation, **how)
  return jax.jit(train_step), state, batch


def test_learns_compiles_once_and_moves_everything():
  train_step, state, batch = _setup()
  initial, losses = state, []
  for _ in range(20):
    state, metrics = train_step(state, batch, jax.random.key(1))
    losses.append(float(metrics['loss']))
  assert int(state.step) == 20 and train_step._cache_size() == 1
  assert losses[-1] < losses[0]
  chex.assert_tree_all_finite(state)
  moved = jax.tree.map(
      lambda a, b: bool(jnp.any(a != b)),
      (initial.params, initial.batch_stats),
      (state.params, state.batch_stats),
  )
  assert all(jax.tree.leaves(moved)), moved


class _Linear(nn.Module):
  """A model without BatchNorm, like those in the skeletons of DeiT and Swin."""

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
  """After each update, in float64, starting from the initial weights."""
  train_step, state, batch = _setup(optax.adamw(1e-1), ema_decay=0.75)
  chex.assert_trees_all_equal(state.ema, state.variables)
  mean = jax.tree.map(np.float64, state.variables)
  for _ in range(3):
    state, _ = train_step(state, batch, jax.random.key(1))
    mean = jax.tree.map(
        lambda m, v: 0.75 * m + 0.25 * np.float64(v), mean, state.variables
    )
    chex.assert_trees_all_close(state.ema, mean, rtol=1e-5, atol=1e-6)
  assert _setup()[1].ema is None


def test_draws_follow_key_and_step():
  train_step, state, batch = _setup()
  key = jax.random.key(1)
  same = [train_step(state, batch, key)[1]['loss'] for _ in range(2)]
  assert same[0] == same[1]
  later = train_step(state.replace(step=state.step + 1), batch, key)[1]['loss']
  other = train_step(state, batch, jax.random.key(2))[1]['loss']
  assert len({float(same[0]), float(later), float(other)}) == 3


class _Root:
  """A model with logits proportional to sqrt(w), of infinite slope at 0."""

  def __init__(self):
    self.keys = []

  def apply(self, variables, image, *, train, rngs, mutable):
    assert train and mutable == ['batch_stats']
    self.keys += [rngs['dropout'], rngs['sampling']]
    root = jnp.sqrt(variables['params']['w']) * jnp.arange(3.0)
    return jnp.tile(root, (len(image), 1)), {'batch_stats': {}}


def _root_step(model, augmentation, *, step, w, loss=losses.class_loss):
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
  # Not jitted, so that the recorded keys are concrete.
  return train_step(state, batch, jax.random.key(1))[1]


def test_augmentation_dropout_sampling_and_loss_have_a_stream_each():
  model, keys = _Root(), []

  def augmentation(key, batch, step):
    keys.append(key)
    return _augmentation(key, batch, step)

  of_loss = []

  def loss(apply, image, targets, key):
    of_loss.append(key)
    return losses.class_loss(apply, image, targets, key)

  for step in (0, 1):
    _root_step(model, augmentation, step=step, w=1.0, loss=loss)
  told = [step_lib.augment_key(jax.random.key(1), step) for step in (0, 1)]
  data = [jax.random.key_data(key).tolist() for key in keys]
  assert data == [jax.random.key_data(key).tolist() for key in told]
  data += [jax.random.key_data(key).tolist() for key in model.keys + of_loss]
  assert len({tuple(words) for words in data}) == 8


def test_a_gradient_that_is_not_finite_is_told():
  metrics = _root_step(_Root(), _augmentation, step=0, w=0.0)
  assert np.isfinite(metrics['loss']) and not bool(metrics['finite'])


def test_metrics_by_hand():
  """One step of SGD from uniform logits, whose loss is log 3."""
  train_step, state, batch = _setup(optax.sgd(0.5))
  head = state.params['head']
  params = {**state.params, 'head': jax.tree.map(jnp.zeros_like, head)}
  new, metrics = train_step(
      state.replace(params=params), batch, jax.random.key(1)
  )
  assert metrics['loss'] == pytest.approx(np.log(3), rel=1e-6)
  # All logits are equal, so argmax takes class 0.
  share = float(np.mean(np.asarray(batch['label']) == 0))
  assert metrics['accuracy'] == pytest.approx(share)
  # The head's bias has gradient mean(p - target) and moves by -0.5 of it.
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


@functools.cache
def _with_and_without_skipping():
  """Returns a state, a good batch, and the compiled steps of both policies."""

  def augmentation(key, batch, step):
    image, targets = _augmentation(key, batch, step)
    image = image.at[0, 0, 0, 0].add(batch['added'])
    return image * batch['slope'], targets

  with compiling.usual_kernels():  # The two programs must agree in every bit.
    (skipping, state, batch), (plain, *_) = (
        _setup(
            optax.adamw(1e-1),
            augmentation=augmentation,
            ema_decay=0.75,
            skip_nonfinite=skips,
        )
        for skips in (True, False)
    )
  good = {**batch, 'added': jnp.float32(0), 'slope': jnp.float32(1)}
  return state, good, skipping, plain


@pytest.mark.parametrize(
    'changes',
    [
        {'added': np.float32(np.nan)},  # the loss is not finite
        {'slope': np.float32(1e38)},  # its gradient is not
    ],
    ids=['loss', 'gradient'],
)
def test_a_step_that_is_skipped_was_as_if_it_were_not(changes):
  """Only the step count differs: later steps draw and learn as without it."""
  state, good, skipping, plain = _with_and_without_skipping()
  bad = {**good, **changes}
  key = jax.random.key(1)

  def run(batches, state):
    for batch in batches:
      state, metrics = skipping(state, batch, key)
      assert bool(metrics['finite']) == (batch is good)
    return state

  with_it = run((good, bad, good), state)
  without = run((good,), state)
  without = run((good,), without.replace(step=without.step + 1))
  assert int(with_it.step) == 3
  chex.assert_trees_all_equal(with_it, without)
  # A good batch gives the same update as without the policy.
  chex.assert_trees_all_equal(run((good,), state), plain(state, good, key)[0])
  # Without the policy, a bad batch is told.
  assert not bool(plain(state, bad, key)[1]['finite'])


class _Model(nn.Module):
  batch_norm: bool

  @nn.compact
  def __call__(self, x, *, train: bool):
    x = nn.Conv(4, (3, 3), strides=2, name='conv')(x)
    if self.batch_norm:
      x = layers.BatchNorm(name='norm')(x, train=train)
    return nn.Dense(tiny.CLASSES, name='head')(nn.relu(x).mean((1, 2)))


def _mixing(key, batch, step):
  """Mixes neighbours with one draw for the whole batch."""
  target = mix.smooth_targets(
      batch['label'], num_classes=tiny.CLASSES, smoothing=0.1
  )
  weight = jax.random.uniform(key)  # Not Beta, which takes long to compile.
  image = mix.blend_with_partner(batch['image'] / 255.0, weight)
  return image, mix.blend_with_partner(target, weight)


def _after_two_steps(steps, *, batch_norm):
  update, state, batch = _setup(
      optax.sgd(0.5),
      model=_Model(batch_norm),
      augmentation=_mixing,
      count=12,
      accumulate_steps=steps,
  )
  state, _ = update(state, batch, jax.random.key(1))
  return update(state, batch, jax.random.key(1)), state, batch


def test_neighbours_stay_together_and_parts_reach_all_over_the_batch():
  parts = step_lib.split_batch({'row': jnp.arange(12)}, 3, True)['row']
  assert parts.tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
  parts = step_lib.split_batch({'row': jnp.arange(6)}, 2, False)['row']
  assert parts.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_parts_add_up_to_the_large_batch():
  """This holds without BatchNorm only."""
  whole, _, _ = _after_two_steps(1, batch_norm=False)
  parts, _, _ = _after_two_steps(3, batch_norm=False)
  chex.assert_trees_all_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_batch_norm_sees_a_part_at_a_time():
  """Running means are updated once per part, with the part's own mean."""
  (state, _), before, batch = _after_two_steps(2, batch_norm=True)
  key = step_lib.augment_key(jax.random.key(1), 1)
  image, _ = jax.jit(_mixing, static_argnums=2)(key, batch, 1)
  running = np.asarray(before.batch_stats['norm']['mean'], np.float64)
  conv = nn.Conv(4, (3, 3), strides=2)
  for first in (0, 2):
    rows = [row for row in range(12) if row % 4 - first in (0, 1)]
    maps = conv.apply({'params': before.params['conv']}, image[np.array(rows)])
    running = 0.9 * running + 0.1 * np.asarray(maps.mean((0, 1, 2)))
  found = state.batch_stats['norm']['mean']
  np.testing.assert_allclose(found, running, rtol=1e-5, atol=1e-6)


def test_create_is_float32_and_follows_the_key():
  @jax.jit
  def create(key):
    return state_lib.create(tiny.Tiny(), optax.adamw(1.0), key, (6, 7, 3))

  first, again, other = (create(jax.random.key(seed)) for seed in (0, 0, 1))
  assert first.step.dtype == jnp.int32 and int(first.step) == 0
  assert {leaf.dtype for leaf in jax.tree.leaves(first.variables)} == {
      jnp.dtype('float32')
  }
  kernel = first.params['conv']['kernel']
  assert jnp.array_equal(kernel, again.params['conv']['kernel'])
  assert not jnp.array_equal(kernel, other.params['conv']['kernel'])
  assert set(first.variables) == {'params', 'batch_stats'}


def test_the_decay_per_step_is_the_released_one():
  """The config's 0.99996 is for 512 images; 2,048 images have 0.99984."""
  assert state_lib.ema_decay_per_step(0.99996, 512) == 0.99996
  assert f'{state_lib.ema_decay_per_step(0.99996, 2048):.5f}' == '0.99984'
  assert state_lib.ema_decay_per_step(0.81, 256) == pytest.approx(0.9)
  assert state_lib.ema_decay_per_step(0.0, 64) == 0


def test_an_average_warms_up():
  """min(d, (1 + t) / (10 + t)) is 1/10, 2/11 and 3/12, then 0.28 for d."""
  mean, expected = {'a': jnp.full((2,), 5.0)}, 5.0
  for step, decay in enumerate((1 / 10, 2 / 11, 3 / 12, 0.28)):
    value = step + 1.0
    expected = decay * expected + (1 - decay) * value
    mean = state_lib.update_ema(
        mean, {'a': jnp.full((2,), value)}, 0.28, step=jnp.int32(step)
    )
    np.testing.assert_allclose(mean['a'], expected, rtol=1e-6)


def test_the_first_update_of_an_average_that_warms_up_is_a_tenth_old():
  train_step, state, batch = _setup(ema_decay=0.9, ema_warmup=True)
  after, _ = train_step(state, batch, jax.random.key(1))
  want = jax.tree.map(
      lambda old, new: 0.1 * old + 0.9 * new, state.ema, after.variables
  )
  chex.assert_trees_all_close(after.ema, want, rtol=1e-6, atol=1e-7)


def test_an_average_of_what_does_not_change_keeps_every_bit():
  """`d * w + (1 - d) * w` would drift over thousands of steps."""
  value = jax.random.normal(jax.random.key(0), (101,))
  mean = jax.lax.fori_loop(
      0, 3000, lambda _, mean: state_lib.update_ema(mean, value, 0.99984), value
  )
  np.testing.assert_array_equal(mean, value)


def test_decay_range():
  params = {
      'a': {'decay_logit': jnp.array([[0.0], [1.0]])},
      'b': {'decay_logit': jnp.array([[-2.0, 0.5], [0.0, 0.0]]), 'kernel': 9.0},
  }
  found = state_lib.decay_range(params)
  assert found['gamma_min'] == pytest.approx(1 / (1 + np.exp(2)))
  assert found['gamma_max'] == pytest.approx(1 / (1 + np.exp(-1)))
  assert state_lib.decay_range({'kernel': jnp.ones(3)}) == {}


def test_metrics_tell_the_rate_of_the_update_and_the_decays_after_it():
  rate = optax.linear_schedule(3.0, 1.0, 2)
  settings = recipes.defaults('retention_compact').optimizer
  tx = optimizer.from_config(settings, rate)
  train_step, state, batch = _setup(
      tx, learning_rate=lambda s: optimizer.last_learning_rate(rate, s)
  )
  found = []
  for _ in range(4):
    state, metrics = train_step(state, batch, jax.random.key(1))
    found.append(float(metrics['learning_rate']))
    gamma = jax.nn.sigmoid(state.params['decay_logit'])
    assert metrics['gamma_min'] == pytest.approx(float(gamma.min()))
    assert metrics['gamma_max'] == pytest.approx(float(gamma.max()))
  assert found == [3.0, 2.0, 1.0, 1.0]
