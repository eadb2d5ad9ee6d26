"""The schedule value by value, and what decays."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.train import optimizer


def test_schedule_value_by_value():
  schedule = optimizer.learning_rate_schedule(
      2.0, warmup_steps=4, total_steps=10
  )
  warmup = [0.0, 0.5, 1.0, 1.5]
  cosine = [1 + math.cos(math.pi * t / 6) for t in range(7)]
  np.testing.assert_allclose(
      [float(schedule(t)) for t in range(11)], warmup + cosine, atol=1e-6
  )
  assert float(schedule(4)) == 2.0
  assert abs(float(schedule(10))) < 1e-6


def test_schedule_without_warmup_starts_at_the_peak():
  schedule = optimizer.learning_rate_schedule(
      2.0, warmup_steps=0, total_steps=4
  )
  np.testing.assert_allclose(
      [float(schedule(t)) for t in (0, 2, 4)], [2.0, 1.0, 0.0], atol=1e-6
  )


def test_schedule_refuses_a_warmup_as_long_as_the_run():
  with pytest.raises(UserError, match='warmup_epochs'):
    optimizer.learning_rate_schedule(1.0, warmup_steps=7, total_steps=7)


def test_the_schedule_may_begin_and_end_above_zero():
  schedule = optimizer.learning_rate_schedule(
      2.0, warmup_steps=4, total_steps=10, start=0.5, final=0.25
  )
  warmup = [0.5, 0.875, 1.25, 1.625]
  cosine = [0.25 + 1.75 / 2 * (1 + math.cos(math.pi * t / 6)) for t in range(7)]
  np.testing.assert_allclose(
      [float(schedule(t)) for t in range(11)], warmup + cosine, rtol=1e-6
  )


def test_the_learning_rates_of_epochs_are_those_of_the_released_logs():
  """What the authors' logs print, peak 2e-3 over 300 epochs, and by hand."""
  rates = optimizer.epoch_learning_rates(
      2e-3, warmup_epochs=5.0, num_epochs=300, start=1e-6, final=1e-5
  )
  assert len(rates) == 300
  logged = [1e-6, 1e-6, 4.008e-4, 8.006e-4, 1.2004e-3, 1.6002e-3]
  np.testing.assert_allclose(rates[:6], logged, rtol=1e-12)
  for epoch in (6, 100, 151, 299):
    cosine = math.cos(math.pi * (epoch - 1) / 300)
    expected = 1e-5 + (2e-3 - 1e-5) / 2 * (1 + cosine)
    assert rates[epoch] == pytest.approx(expected, rel=1e-12)
  assert rates[151] == pytest.approx(1.005e-3)  # half way: t = 150 of 300
  assert f'{rates[299]:.2e}' == '1.02e-05'


def test_the_epochs_refuse_a_warmup_as_long_as_the_run():
  with pytest.raises(UserError, match='of 7 epochs fills the whole run of 7'):
    optimizer.epoch_learning_rates(1.0, warmup_epochs=7.0, num_epochs=7)


def test_a_rate_holds_for_the_steps_of_its_epoch():
  """Ten records in batches of four: epochs end behind 2, 5 and 7 updates."""
  schedule = optimizer.piecewise_schedule([3.0, 1.0, 2.0], [2, 5, 7])
  rates = [float(jax.jit(schedule)(count)) for count in range(9)]
  assert rates == [3, 3, 1, 1, 1, 2, 2, 2, 2]
  assert [float(schedule(count)) for count in range(9)] == rates


PARAMS = {
    'stem': {
        'conv0': {'kernel': jnp.ones((3, 3, 2, 5)), 'bias': jnp.ones(5)},
        'norm0': {'scale': jnp.ones(5), 'bias': jnp.ones(5)},
    },
    'stage1': {
        'block00': {
            'position': {'kernel': jnp.ones((3, 3, 1, 5)), 'bias': jnp.ones(5)},
            'attention': {'decay_logit': jnp.ones((2, 1))},
            'attention_scale': jnp.ones(5),
            'ffn_scale': jnp.ones(5),
        }
    },
}
KERNELS = {'stem/conv0/kernel', 'stage1/block00/position/kernel'}


def _paths(tree):
  return {
      '/'.join(entry.key for entry in path): leaf
      for path, leaf in jax.tree.leaves_with_path(tree)
  }


def test_only_kernels_decay_by_path():
  mask = _paths(optimizer.decay_mask(PARAMS))
  assert {path for path, decays in mask.items() if decays} == KERNELS


def test_layer_scale_decays_if_asked_to():
  mask = _paths(optimizer.decay_mask(PARAMS, layer_scale=True))
  scales = {f'stage1/block00/{name}_scale' for name in ('attention', 'ffn')}
  assert {path for path, decays in mask.items() if decays} == KERNELS | scales


# name -> tensors and values without decay, and with, in the authors' code.
RELEASED = {
    'rmt_t': ((207, 66_088), (135, 14_268_128)),
    'rmt_s': ((402, 133_864), (270, 26_833_376)),
    'rmt_l': ((610, 329_016), (480, 95_135_848)),
}


@pytest.mark.parametrize('name', RELEASED)
def test_what_decays_is_what_decays_in_the_released_code(name):
  model = factory.create_model(name, num_classes=1000)
  params = factory.variable_shapes(model, (32, 32, 3))['params']
  mask = optimizer.decay_mask(params, layer_scale=True)
  sizes = {True: [], False: []}
  for leaf, decays in zip(
      jax.tree.leaves(params), jax.tree.leaves(mask), strict=True
  ):
    sizes[decays].append(leaf.size)
  counts = [(len(sizes[key]), sum(sizes[key])) for key in (False, True)]
  assert counts == list(RELEASED[name])


def test_layer_scale_shrinks_with_the_kernels():
  tx = optimizer.make_optimizer(
      lambda _: 0.5,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      weight_decay=0.25,
      decay_layer_scale=True,
  )
  grads = jax.tree.map(jnp.zeros_like, PARAMS)
  updates = _paths(tx.update(grads, tx.init(PARAMS), PARAMS)[0])
  assert (updates['stage1/block00/ffn_scale'] == -0.125).all()
  assert not updates['stem/norm0/scale'].any()


def test_the_update_is_adam_plus_decoupled_decay():
  """At the first step Adam's ratio is g / (|g| + eps): 1 for any g > 0."""
  tx = optimizer.make_optimizer(
      lambda _: 0.5, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.25
  )
  grads = jax.tree.map(lambda leaf: 3.0 * jnp.ones_like(leaf), PARAMS)
  updates, _ = tx.update(grads, tx.init(PARAMS), PARAMS)
  for path, update in _paths(updates).items():
    expected = -0.5 * (1 + 0.25) if path in KERNELS else -0.5
    np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=path)
