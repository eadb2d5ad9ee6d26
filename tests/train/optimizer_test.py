"""Tests schedules, weight decay and optimisers against formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense import segmenter
from gswinrmt_jax.train import learning_rate, optimizer
from gswinrmt_jax.train import schedule as schedule_lib


def test_schedule_value_by_value():
  schedule = learning_rate.warmup_cosine(2.0, warmup_steps=4, total_steps=10)
  warmup = [0.0, 0.5, 1.0, 1.5]
  cosine = [1 + math.cos(math.pi * t / 6) for t in range(7)]
  np.testing.assert_allclose(
      [float(schedule(t)) for t in range(11)], warmup + cosine, atol=1e-6
  )
  assert float(schedule(4)) == 2.0
  assert abs(float(schedule(10))) < 1e-6


def test_schedule_without_warmup_starts_at_the_peak():
  schedule = learning_rate.warmup_cosine(2.0, warmup_steps=0, total_steps=4)
  np.testing.assert_allclose(
      [float(schedule(t)) for t in (0, 2, 4)], [2.0, 1.0, 0.0], atol=1e-6
  )


@pytest.mark.parametrize('kind', ['cosine', 'epochs', 'poly'])
def test_a_warmup_as_long_as_the_run_is_refused(kind):
  config = recipes.defaults('rmt_compact')
  config.optimizer.schedule = kind
  config.num_epochs, config.optimizer.warmup_epochs = 7, 7.0
  schedule = schedule_lib.from_config(config, 256)
  with pytest.raises(UserError, match='of 14 steps fills the whole run of 14'):
    learning_rate.from_config(config.optimizer, schedule)


def test_the_schedule_may_begin_and_end_above_zero():
  schedule = learning_rate.warmup_cosine(
      2.0, warmup_steps=4, total_steps=10, start=0.5, final=0.25
  )
  warmup = [0.5, 0.875, 1.25, 1.625]
  cosine = [0.25 + 1.75 / 2 * (1 + math.cos(math.pi * t / 6)) for t in range(7)]
  np.testing.assert_allclose(
      [float(schedule(t)) for t in range(11)], warmup + cosine, rtol=1e-6
  )


def test_the_learning_rates_of_epochs_are_those_of_the_released_logs():
  """As the authors' logs print them (peak 2e-3, 300 epochs), and by formula."""
  rates = learning_rate.epoch_learning_rates(
      2e-3, warmup_epochs=5.0, num_epochs=300, start=1e-6, final=1e-5
  )
  assert len(rates) == 300
  logged = [1e-6, 1e-6, 4.008e-4, 8.006e-4, 1.2004e-3, 1.6002e-3]
  np.testing.assert_allclose(rates[:6], logged, rtol=1e-12)
  for epoch in (6, 100, 151, 299):
    cosine = math.cos(math.pi * (epoch - 1) / 300)
    expected = 1e-5 + (2e-3 - 1e-5) / 2 * (1 + cosine)
    assert rates[epoch] == pytest.approx(expected, rel=1e-12)
  assert rates[151] == pytest.approx(1.005e-3)  # halfway: t = 150 of 300
  assert f'{rates[299]:.2e}' == '1.02e-05'


def test_a_rate_holds_for_the_steps_of_its_epoch():
  """Ten records in batches of four: epochs end after 2, 5 and 7 updates."""
  schedule = learning_rate.piecewise([3.0, 1.0, 2.0], [2, 5, 7])
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
  mask = _paths(optimizer.decay_mask('kernels', PARAMS))
  assert {path for path, decays in mask.items() if decays} == KERNELS


def test_layer_scale_decays_if_asked_to():
  mask = _paths(optimizer.decay_mask('kernels', PARAMS, layer_scale=True))
  scales = {f'stage1/block00/{name}_scale' for name in ('attention', 'ffn')}
  assert {path for path, decays in mask.items() if decays} == KERNELS | scales


# Whether a parameter decays where the rule goes by its released name.
_NOT_NORMS = {
    'backbone/stem/conv0/bias': True,
    'backbone/stem/norm0/scale': True,  # patch_embed.proj.1
    'backbone/stage3/block00/attention_norm/scale': False,
    'backbone/stage3/block00/ffn/up/bias': True,
    'backbone/stage3/block00/attention_scale': True,  # gamma_1
    'backbone/down1/conv/kernel': True,
    'backbone/down1/norm/scale': False,
    'backbone/feature_norm4/bias': False,
    'decode_head/lateral1/norm/scale': True,  # lateral_convs.0.bn
    'decode_head/classifier/conv/bias': True,
    'auxiliary_head/conv/norm/bias': True,
}


def test_what_decays_in_the_released_segmenters():
  model = segmenter.create_segmenter(
      'rmt_b', head='uper', num_classes=150, depths=(1, 1, 1, 1)
  )
  params = factory.variable_shapes(model, (32, 32, 3))['params']
  everything = _paths(optimizer.decay_mask('all', params))
  assert all(everything.values())
  mask = _paths(optimizer.decay_mask('not_norms', params))
  assert {path: mask[path] for path in _NOT_NORMS} == _NOT_NORMS
  # Two norms per block, three of downsamplings and four of feature maps, each
  # with scale and bias.
  assert list(mask.values()).count(False) == 2 * (4 * 2 + 3 + 4)


def test_decay_logits_never_decay_and_other_models_have_our_names():
  params = {'attention': PARAMS['stage1']['block00']['attention']}
  params['attention'] |= {'gate': {'bias': jnp.ones(3)}}
  params['attention'] |= {'head_norm': {'scale': jnp.ones(3)}}
  for rule, norm in (('all', True), ('not_norms', False)):
    mask = optimizer.decay_mask(rule, {'stage1': {'block00': params}})
    assert mask['stage1']['block00']['attention'] == {
        'decay_logit': False,
        'gate': {'bias': True},
        'head_norm': {'scale': norm},
    }


# name -> (tensors, elements) without decay and with, in the authors' code.
RELEASED = {
    'rmt_t': ((207, 66_088), (135, 14_268_128)),
    'rmt_s': ((402, 133_864), (270, 26_833_376)),
    'rmt_l': ((610, 329_016), (480, 95_135_848)),
}


@pytest.mark.parametrize('name', RELEASED)
def test_what_decays_is_what_decays_in_the_released_code(name):
  model = factory.create_model(name, num_classes=1000)
  params = factory.variable_shapes(model, (32, 32, 3))['params']
  mask = optimizer.decay_mask('kernels', params, layer_scale=True)
  sizes = {True: [], False: []}
  for leaf, decays in zip(
      jax.tree.leaves(params), jax.tree.leaves(mask), strict=True
  ):
    sizes[decays].append(leaf.size)
  counts = [(len(sizes[key]), sum(sizes[key])) for key in (False, True)]
  assert counts == list(RELEASED[name])


def test_layer_scale_shrinks_with_the_kernels():
  tx = optimizer.adamw(
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
  """At the first step Adam's ratio is g / (|g| + eps), so 1 for g > 0."""
  tx = optimizer.adamw(
      lambda _: 0.5, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.25
  )
  grads = jax.tree.map(lambda leaf: 3.0 * jnp.ones_like(leaf), PARAMS)
  updates, _ = tx.update(grads, tx.init(PARAMS), PARAMS)
  for path, update in _paths(updates).items():
    expected = -0.5 * (1 + 0.25) if path in KERNELS else -0.5
    np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=path)


def _adamw_by_hand(params, grads, rates, decay):
  """Runs Kingma and Ba's Algorithm 1 with decoupled decay, in float64."""
  m, v, b1, b2, eps = 0.0, 0.0, 0.8, 0.95, 1e-3
  for t, (g, rate) in enumerate(zip(grads, rates, strict=True), 1):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    ratio = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    params = params - rate * (ratio + decay * params)
  return params


def test_ten_updates_are_those_of_the_algorithm():
  """With a varying learning rate; one leaf decays, the other does not."""
  rates = optax.linear_schedule(0.1, 0.5, 10)
  tx = optimizer.adamw(rates, b1=0.8, b2=0.95, eps=1e-3, weight_decay=0.25)
  rng = np.random.default_rng(0)
  grads = rng.normal(size=(10, 7))
  params = {'kernel': jnp.ones(7), 'bias': jnp.ones(7)}
  state = tx.init(params)
  for gradient in grads:
    gradient = jnp.asarray(gradient, jnp.float32)
    updates, state = tx.update(
        {'kernel': gradient, 'bias': gradient}, state, params
    )
    params = optax.apply_updates(params, updates)
  rates = [float(rates(t)) for t in range(10)]
  for name, decay in (('kernel', 0.25), ('bias', 0.0)):
    expected = _adamw_by_hand(np.ones(7), grads, rates, decay)
    np.testing.assert_allclose(params[name], expected, rtol=2e-5, atol=2e-6)


def _muon_by_hand(w, grads, rates, decay):
  """Muon in float64, for a matrix `w`.

  As in optax, and unlike in Jordan's code, the Nesterov momentum of 0.95 is
  bias-corrected.
  """
  momentum, beta = 0.0, 0.95
  for t, (g, rate) in enumerate(zip(grads, rates, strict=True), 1):
    momentum = beta * momentum + (1 - beta) * g
    ahead = beta * momentum / (1 - beta ** (t + 1))
    x = ahead + (1 - beta) * g / (1 - beta**t)
    x /= np.linalg.norm(x)
    for _ in range(5):  # Newton-Schulz, towards U V^T of the SVD U S V^T
      a = x @ x.T
      x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    w = w - rate * (0.2 * math.sqrt(max(w.shape)) * x + decay * w)
  return w


@pytest.mark.parametrize(
    'shape, matrix', [((4, 6), (4, 6)), ((3, 2, 5, 4), (30, 4))]
)
def test_updates_of_matrices_are_those_of_muon(shape, matrix):
  """Of a linear layer, and of a convolution over all channels."""
  rates = optax.linear_schedule(0.1, 0.5, 4)
  tx = optimizer.muon(rates, weight_decay=0.25)
  rng = np.random.default_rng(0)
  start, *grads = rng.normal(size=(5, *shape))
  params = {'query': {'kernel': jnp.asarray(start, jnp.float32)}}
  state = tx.init(params)
  for gradient in grads:
    gradient = {'query': {'kernel': jnp.asarray(gradient, jnp.float32)}}
    updates, state = tx.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
  expected = _muon_by_hand(
      start.reshape(matrix),
      [one.reshape(matrix) for one in grads],
      [float(rates(t)) for t in range(4)],
      0.25,
  )
  np.testing.assert_allclose(
      params['query']['kernel'].reshape(matrix), expected, rtol=1e-4, atol=1e-5
  )


def test_muon_leaves_what_is_no_matrix_to_adam():
  """Whatever its shape, with the same weight decay."""
  rates = optax.linear_schedule(0.1, 0.5, 10)
  fields = {'b1': 0.8, 'b2': 0.95, 'eps': 1e-3, 'weight_decay': 0.25}
  rng = np.random.default_rng(0)
  params = {
      'head': {'kernel': rng.normal(size=(4, 3)), 'bias': rng.normal(size=3)},
      'stage1': {
          'local': {'kernel': rng.normal(size=(3, 3, 1, 4))},
          'decay_logit': rng.normal(size=(2, 2)),
          'attention_scale': rng.normal(size=4),
      },
      'norm': {'scale': rng.normal(size=4), 'bias': rng.normal(size=4)},
  }
  params = jax.tree.map(jnp.float32, params)
  results = []
  for tx in (optimizer.muon(rates, **fields), optimizer.adamw(rates, **fields)):
    state, after = tx.init(params), params
    for _ in range(3):
      updates, state = tx.update(params, state, after)
      after = optax.apply_updates(after, updates)
    results.append(after)
    assert float(optimizer.last_learning_rate(rates, state)) == rates(2)
  jax.tree.map(np.testing.assert_array_equal, *results)


def _config(**changes):
  config = recipes.digits('retention_compact')
  config.update_from_flattened_dict(
      {'batch_size': 4, 'num_epochs': 4, 'optimizer.warmup_epochs': 2.0}
      | changes
  )
  return config


def _rates(config, count):
  steps = schedule_lib.from_config(config, 10)
  rate = learning_rate.from_config(config.optimizer, steps)
  return [float(rate(step)) for step in range(count)]


def test_warmup_steps_follow_the_epochs():
  """2.5 epochs of 10 images in batches of 4 are floor(6.25) steps."""
  config = _config(
      **{
          'num_epochs': 50,
          'optimizer.warmup_epochs': 2.5,
          'optimizer.learning_rate': 2.0,
      }
  )
  rates = _rates(config, 66)
  assert rates[6] == 2.0 and rates[3] == 1.0
  # 50 epochs end at step 125; the middle of the cosine is (6 + 125) / 2.
  np.testing.assert_allclose(rates[65], 1.013, atol=1e-3)


_ENDS = {
    'optimizer.learning_rate': 0.5,
    'optimizer.warmup_learning_rate': 0.25,
    'optimizer.final_learning_rate': 0.125,
}


def test_rates_of_epochs_change_where_epochs_end():
  """Ten records in batches of four: epochs end at steps 2, 5, 7, 10."""
  rates = _rates(_config(**_ENDS, **{'optimizer.schedule': 'epochs'}), 10)
  # Epoch 3 is at t = 2 of 4, halfway down the cosine.
  np.testing.assert_allclose(rates, [0.25] * 5 + [0.375] * 2 + [0.3125] * 3)


def test_the_cosine_takes_both_ends():
  rates = _rates(_config(**_ENDS), 11)
  found = [rates[step] for step in (0, 1, 5, 10)]
  np.testing.assert_allclose(found, [0.25, 0.3, 0.5, 0.125], rtol=1e-6)


def test_the_rates_of_the_released_segmenters():
  """By mmcv's formulas; the warm-up multiplies the decayed rate."""
  fpn = learning_rate.warmup_poly(
      1e-4, power=0.9, warmup_steps=0, total_steps=80_000, final=1e-6
  )
  uper = learning_rate.warmup_poly(
      6e-5,
      power=1.0,
      warmup_steps=1500,
      total_steps=160_000,
      start=6e-5 * 1e-6,
  )
  for step in (0, 1, 1499, 1500, 40_000, 79_999, 80_000, 160_000):
    left = max(1 - step / 80_000, 0)
    expected = (1e-4 - 1e-6) * left**0.9 + 1e-6
    np.testing.assert_allclose(float(fpn(step)), expected, rtol=1e-4)
    expected = 6e-5 * (1 - step / 160_000)
    if step < 1500:
      expected *= 1 - (1 - step / 1500) * (1 - 1e-6)
    np.testing.assert_allclose(
        float(uper(step)), expected, rtol=1e-4, atol=2e-12
    )


def test_a_schedule_may_be_given_in_steps():
  """80,000 steps of 16 images are 63.3 epochs of ADE20K's 20,210 images."""
  found = schedule_lib.from_config(
      _steps(batch_size=16, num_epochs=0, num_steps=80_000), 20_210
  )
  assert found.total_steps == found.stop_step == 80_000
  assert found.num_epochs == found.epoch_of(80_000) == 64
  assert found.epoch_end(63) == 79_576 and found.validates_at(80_000)
  assert found.validated_epochs[80_000] == 64
  stopped = schedule_lib.from_config(
      _steps(
          batch_size=16, num_epochs=0, num_steps=80_000, stop_after_epochs=99
      ),
      20_210,
  )
  assert stopped == found


def test_cifar10_by_the_paper():
  found = schedule_lib.from_config(
      _steps(batch_size=128, num_epochs=50), 45_000
  )
  assert found.total_steps == found.stop_step == 17_578
  assert found.epoch_end(1) == 351 and found.epoch_end(10) == 3515
  assert len(found.validated_epochs) == 50
  assert found.validated_epochs[17_578] == 50


def test_epochs_end_at_the_floor():
  found = schedule_lib.from_config(_steps(), 7)
  assert found.validated_epochs == {1: 1, 3: 2, 5: 3, 7: 4, 8: 5, 10: 6}


def test_stopping_early_keeps_the_schedule():
  found = schedule_lib.from_config(_steps(stop_after_epochs=3), 7)
  assert (found.stop_step, found.total_steps) == (5, 10)


@pytest.mark.parametrize('every', [1, 2, 4])
def test_stopping_early_validates_no_other_epochs(every):
  whole = schedule_lib.from_config(_steps(eval_every_epochs=every), 7)
  for stop in {*range(every, 7, every), 6}:
    changes = {'eval_every_epochs': every, 'stop_after_epochs': stop}
    found = schedule_lib.from_config(_steps(**changes), 7)
    assert found.validated_epochs.items() <= whole.validated_epochs.items()
    assert found.validates_at(found.stop_step)


@pytest.mark.parametrize('steps', [0, 10])
def test_a_run_stops_only_after_an_epoch_that_every_run_validates(steps):
  """10 steps of 4 records are 6 epochs of 7."""
  config = _steps(eval_every_epochs=4)
  if steps:
    config.num_epochs, config.num_steps = 0, steps
  for stop, allowed in ((0, True), (4, True), (5, False), (6, True)):
    config.stop_after_epochs = stop
    if allowed:
      schedule_lib.from_config(config, 7)
    else:
      with pytest.raises(
          UserError, match=r'is 5: must be a multiple of .*, 4,'
      ):
        schedule_lib.from_config(config, 7)
  config.stop_after_epochs = 1000
  if steps:
    schedule_lib.from_config(config, 7)


def test_the_last_step_is_validated_always():
  found = schedule_lib.from_config(_steps(eval_every_epochs=4), 7)
  assert found.validated_epochs == {7: 4, 10: 6}


def test_epochs_shorter_than_a_step_have_no_validation():
  found = schedule_lib.from_config(_steps(batch_size=5), 2)
  assert found.validated_epochs == {1: 4, 2: 6}


def _steps(**changes):
  fields = {'num_epochs': 6, 'eval_every_epochs': 1, 'log_every_steps': 3}
  return _config(**fields | changes)


def test_a_batch_larger_than_the_run_is_refused():
  with pytest.raises(UserError, match='do not fill one batch of 43'):
    schedule_lib.from_config(_steps(batch_size=43), 7)


def test_metrics_are_read_before_every_checkpoint():
  found = schedule_lib.from_config(
      _steps(batch_size=1, log_every_steps=6, checkpoint_every_steps=4), 10
  )
  steps = range(1, 21)
  assert [s for s in steps if found.saves_at(s)] == [4, 8, 12, 16, 20]
  assert [s for s in steps if found.validates_at(s)] == [10, 20]
  logged = [s for s in steps if found.logs_at(s)]
  assert logged == [4, 6, 8, 10, 12, 16, 18, 20]
  never = schedule_lib.from_config(_steps(), 10)
  assert not any(never.saves_at(step) for step in steps)


@pytest.mark.parametrize(('step', 'epoch'), [(2, 1), (3, 2), (5, 2), (15, 6)])
def test_the_epoch_of_a_step(step, epoch):
  assert schedule_lib.from_config(_steps(), 10).epoch_of(step) == epoch
