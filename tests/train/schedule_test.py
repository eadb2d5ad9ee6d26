"""Tests after which steps a run logs, validates, saves and ends."""

import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import schedule as schedule_lib


def _config(**changes):
  config = recipes.digits('retention_compact')
  config.update_from_flattened_dict(
      {
          'batch_size': 4,
          'num_epochs': 6,
          'eval_every_epochs': 1,
          'log_every_steps': 3,
          **changes,
      }
  )
  return config


def test_a_schedule_may_be_given_in_config():
  """80,000 steps of 16 images are 63.3 epochs of ADE20K's 20,210 images."""
  found = schedule_lib.from_config(
      _config(batch_size=16, num_epochs=0, num_steps=80_000), 20_210
  )
  assert found.total_steps == found.stop_step == 80_000
  assert found.num_epochs == found.epoch_of(80_000) == 64
  assert found.epoch_end(63) == 79_576 and found.validates_at(80_000)
  assert found.validated_epochs[80_000] == 64
  stopped = schedule_lib.from_config(
      _config(
          batch_size=16, num_epochs=0, num_steps=80_000, stop_after_epochs=99
      ),
      20_210,
  )
  assert stopped == found


def test_cifar10_by_the_paper():
  found = schedule_lib.from_config(
      _config(batch_size=128, num_epochs=50), 45_000
  )
  assert found.total_steps == found.stop_step == 17_578
  assert found.epoch_end(1) == 351 and found.epoch_end(10) == 3515
  assert len(found.validated_epochs) == 50
  assert found.validated_epochs[17_578] == 50


def test_epochs_end_at_the_floor():
  found = schedule_lib.from_config(_config(), 7)
  assert found.validated_epochs == {1: 1, 3: 2, 5: 3, 7: 4, 8: 5, 10: 6}
  # The last step is validated always, an epoch shorter than a step is not.
  found = schedule_lib.from_config(_config(eval_every_epochs=4), 7)
  assert found.validated_epochs == {7: 4, 10: 6}
  found = schedule_lib.from_config(_config(batch_size=5), 2)
  assert found.validated_epochs == {1: 4, 2: 6}


@pytest.mark.parametrize('every', [1, 2, 4])
def test_stopping_early_validates_no_other_epochs(every):
  whole = schedule_lib.from_config(_config(eval_every_epochs=every), 7)
  for stop in {*range(every, 7, every), 6}:
    changes = {'eval_every_epochs': every, 'stop_after_epochs': stop}
    found = schedule_lib.from_config(_config(**changes), 7)
    assert found.validated_epochs.items() <= whole.validated_epochs.items()
    assert found.validates_at(found.stop_step)
    assert found.total_steps == whole.total_steps


@pytest.mark.parametrize('steps', [0, 10])
def test_a_run_stops_only_after_an_epoch_that_every_run_validates(steps):
  """10 steps of 4 records are 6 epochs of 7."""
  config = _config(eval_every_epochs=4)
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


def test_a_batch_larger_than_the_run_is_refused():
  with pytest.raises(UserError, match='7 images in 6 epochs do not fill one'):
    schedule_lib.from_config(_config(batch_size=43), 7)
  with pytest.raises(UserError, match='7 images in 1 epoch do not fill one'):
    schedule_lib.from_config(_config(batch_size=43, num_epochs=1), 7)


def test_metrics_are_read_before_every_checkpoint():
  found = schedule_lib.from_config(
      _config(batch_size=1, log_every_steps=6, checkpoint_every_steps=4), 10
  )
  steps = range(1, 21)
  assert [s for s in steps if found.saves_at(s)] == [4, 8, 12, 16, 20]
  assert [s for s in steps if found.validates_at(s)] == [10, 20]
  logged = [s for s in steps if found.logs_at(s)]
  assert logged == [4, 6, 8, 10, 12, 16, 18, 20]
  never = schedule_lib.from_config(_config(), 10)
  assert not any(never.saves_at(step) for step in steps)


def test_the_epoch_of_a_step():
  found = schedule_lib.from_config(_config(), 10)
  assert [found.epoch_of(step) for step in (2, 3, 5, 15)] == [1, 2, 2, 6]


def test_a_step_that_ends_several_epochs_is_of_the_last():
  found = schedule_lib.Schedule(100, 128, 5, 5, 1, 50)
  assert [found.epoch_of(step) for step in (1, 2, 3)] == [2, 3, 5]
