"""Tests learning rates value by value, and against the released logs."""

import math

import jax
import numpy as np
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import learning_rate
from gswinrmt_jax.train import schedule as schedule_lib


def test_schedule_without_warmup_starts_at_the_peak():
  schedule = learning_rate.warmup_cosine(2.0, warmup_steps=0, total_steps=4)
  np.testing.assert_allclose(
      [float(schedule(t)) for t in (0, 2, 4)], [2.0, 1.0, 0.0], atol=1e-6
  )


@pytest.mark.parametrize('kind', ['cosine', 'epochs', 'poly', 'drops'])
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
  """2.7 epochs of 10 images in batches of 4 are floor(6.75) steps."""
  config = _config(
      **{
          'num_epochs': 50,
          'optimizer.warmup_epochs': 2.7,
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


def test_the_polynomial_takes_both_ends():
  """The warm-up multiplies it: half of the way down, halfway down."""
  changes = {'optimizer.schedule': 'poly', 'optimizer.power': 1.0}
  rates = _rates(_config(**_ENDS, **changes), 11)
  np.testing.assert_allclose(rates[10], 0.125, rtol=1e-6)
  np.testing.assert_allclose(rates[0], 0.25, rtol=1e-6)


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


def test_drops_are_those_of_the_released_detectors():
  """Factors of mmcv: 500 steps of warm-up from .001, drops at two epochs."""
  wanted = {
      0: 0.001,
      1: 0.002998,
      100: 0.2008,
      499: 0.998002,
      500: 1,
      7999: 1,
      8000: 0.1,
      10_999: 0.1,
      11_000: 0.01,
      11_999: 0.01,
  }
  config = recipes.detection('rmt_t', 'retina')
  config.num_epochs, config.batch_size = 12, 16
  config.optimizer.update(
      schedule='drops',
      learning_rate=2.0,
      warmup_learning_rate=0.002,
      warmup_epochs=0.0,
      warmup_steps=500,
  )
  steps = schedule_lib.from_config(config, 16_000)
  rate = learning_rate.from_config(config.optimizer, steps)
  found = [rate(step) / 2 for step in wanted]
  np.testing.assert_allclose(found, [*wanted.values()], rtol=1e-5, atol=1e-7)
  config.optimizer.drop_epochs = (8, 8)
  rate = learning_rate.from_config(config.optimizer, steps)
  found = [rate(step) / 2 for step in (7999, 8000, 11_999)]
  np.testing.assert_allclose(found, [1, 0.01, 0.01], rtol=1e-5)


@pytest.mark.parametrize(
    'changes', [{'num_epochs': 11}, {'optimizer.warmup_steps': 9000}]
)
def test_a_drop_outside_of_the_run_or_in_the_warmup(changes):
  config = recipes.detection('rmt_t', 'retina')
  config.num_epochs, config.batch_size = 12, 16
  config.optimizer.schedule, config.optimizer.warmup_epochs = 'drops', 0.0
  schedule = schedule_lib.from_config(config, 16_000)
  learning_rate.from_config(config.optimizer, schedule)
  config.update_from_flattened_dict(changes)
  schedule = schedule_lib.from_config(config, 16_000)
  with pytest.raises(UserError, match=r'is \(8, 11\): both must be after the'):
    learning_rate.from_config(config.optimizer, schedule)


def test_the_cosine_takes_both_ends():
  rates = _rates(_config(**_ENDS), 11)
  found = [rates[step] for step in (0, 1, 5, 10)]
  np.testing.assert_allclose(found, [0.25, 0.3, 0.5, 0.125], rtol=1e-6)
