"""A batch in parts: the same mathematics, one part after another."""

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
import tiny_parts

from gswinrmt_jax.augment import mix
from gswinrmt_jax.models import layers
from gswinrmt_jax.train import accumulate
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib


@pytest.fixture(scope='module', autouse=True)
def _compiled_once(tmp_path_factory):
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


class _Model(nn.Module):
  batch_norm: bool

  @nn.compact
  def __call__(self, x, *, train: bool):
    x = nn.Conv(4, (3, 3), strides=2, name='conv')(x)
    if self.batch_norm:
      x = layers.BatchNorm(name='norm')(x, train=train)
    return nn.Dense(tiny.CLASSES, name='head')(nn.relu(x).mean((1, 2)))


def _augmentation(key, batch):
  """Mixes, by one draw for the whole batch."""
  target = mix.smooth_targets(
      batch['label'], num_classes=tiny.CLASSES, smoothing=0.1
  )
  image = batch['image'] / 255.0
  return mix.mix(key, image, target, mixup_alpha=0.8, cutmix_alpha=1.0)


def _after_two_steps(steps, *, batch_norm):
  model, tx = _Model(batch_norm), optax.sgd(0.5)
  state = jax.jit(
      lambda: state_lib.create(model, tx, jax.random.key(0), (6, 7, 3))
  )()
  update = step_lib.make_train_step(
      model, tx, _augmentation, accumulate_steps=steps
  )
  data = tiny.arrays(0, 12)
  batch = {'image': jnp.asarray(data.image), 'label': jnp.asarray(data.label)}
  update = jax.jit(update)
  state, _ = update(state, batch, jax.random.key(1))
  return update(state, batch, jax.random.key(1)), state, batch


def test_neighbours_stay_together_and_parts_reach_all_over_the_batch():
  parts = accumulate.split({'row': jnp.arange(12)}, 3)['row']
  assert parts.tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_parts_add_up_to_the_large_batch(platform, monkeypatch):
  """Without BatchNorm; as on a CPU and, in a loop, as elsewhere."""
  whole, _, _ = _after_two_steps(1, batch_norm=False)

  def value_and_grad(p):
    return accumulate.value_and_grad(
        lambda p, stats, part, index: (jnp.sum(p * part), (p, stats)),
        p,
        {},
        jnp.arange(4.0),
        steps=2,
        reduce=lambda grads: grads,
    )

  monkeypatch.setattr(jax, 'default_backend', lambda: platform)
  parts, _, _ = _after_two_steps(3, batch_norm=False)
  text = str(jax.make_jaxpr(value_and_grad)(jnp.float32(1)))
  chex.assert_trees_all_close(parts, whole, rtol=1e-5, atol=1e-6)
  assert ('unroll=1' in text) == (platform == 'gpu')


def test_batch_norm_sees_a_part_at_a_time():
  """Running means move once for each part, by the part's own mean."""
  (state, _), before, batch = _after_two_steps(2, batch_norm=True)
  image, _ = _augmentation(step_lib.augment_key(jax.random.key(1), 1), batch)
  running = np.asarray(before.batch_stats['norm']['mean'], np.float64)
  conv = nn.Conv(4, (3, 3), strides=2)
  for first in (0, 2):
    rows = [row for row in range(12) if row % 4 - first in (0, 1)]
    maps = conv.apply({'params': before.params['conv']}, image[np.array(rows)])
    running = 0.9 * running + 0.1 * np.asarray(maps.mean((0, 1, 2)))
  found = state.batch_stats['norm']['mean']
  np.testing.assert_allclose(found, running, rtol=1e-5, atol=1e-6)
