"""Epochs in steps."""

import dataclasses

import ml_collections
import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import schedule as plan_lib


def _config(**changes):
  fields = {
      'seed': 0,
      'batch_size': 4,
      'eval_batch_size': 5,
      'num_epochs': 6,
      'stop_after_epochs': 0,
      'eval_every_epochs': 1,
      'checkpoint_every_steps': 0,
      'log_every_steps': 3,
      'steps_per_dispatch': 0,
      'profile_steps': '',
  }
  return ml_collections.ConfigDict({**fields, **changes})


def test_cifar10_by_the_paper():
  plan = plan_lib.make_plan(_config(batch_size=128, num_epochs=50), 45_000)
  assert plan.total_steps == plan.stop_step == 17_578
  assert plan.epoch_end(1) == 351 and plan.epoch_end(10) == 3515
  assert len(plan.milestones) == 50
  assert plan.milestones[17_578] == 50


def test_epochs_end_at_the_floor():
  plan = plan_lib.make_plan(_config(), 7)
  assert plan.milestones == {1: 1, 3: 2, 5: 3, 7: 4, 8: 5, 10: 6}


def test_more_steps_than_the_optimiser_counts():
  with pytest.raises(UserError, match=r'^2,147,483,648 steps are more than'):
    plan_lib.make_plan(_config(batch_size=2, num_epochs=2**16), 2**16)
  plan_lib.make_plan(_config(batch_size=2, num_epochs=2**16 - 1), 2**16)


def test_pieces_of_a_run_without_end_need_no_room():
  plan = plan_lib.make_plan(
      _config(batch_size=1, num_epochs=2**16, log_every_steps=1), 2**14
  )
  pieces = plan.dispatches(2**29, 8)
  assert [next(pieces)[-1] - 2**29 for _ in range(3)] == [1, 2, 3]


def test_stopping_early_keeps_the_schedule():
  plan = plan_lib.make_plan(_config(stop_after_epochs=3), 7)
  assert (plan.stop_step, plan.total_steps) == (5, 10)


def test_the_last_step_is_a_milestone_always():
  plan = plan_lib.make_plan(_config(eval_every_epochs=4), 7)
  assert plan.milestones == {7: 4, 10: 6}


def test_epochs_shorter_than_a_step_have_no_milestone():
  plan = plan_lib.make_plan(_config(batch_size=5), 2)
  assert plan.milestones == {1: 4, 2: 6}


@pytest.mark.parametrize(
    ('changes', 'match'),
    [
        ({'batch_size': 0}, r'config\.batch_size is 0'),
        ({'eval_batch_size': -1}, r'config\.eval_batch_size'),
        ({'log_every_steps': 0}, r'config\.log_every_steps'),
        ({'seed': -1}, r'config\.seed is -1'),
        ({'steps_per_dispatch': -1}, 'steps_per_dispatch is -1'),
        ({'profile_steps': '5:11'}, 'profile_steps .* 1 to 10 of'),
        ({'checkpoint_every_steps': -1}, r'checkpoint_every_steps is -1'),
        ({'stop_after_epochs': 7}, r'from 0 to config\.num_epochs, 6'),
        ({'stop_after_epochs': -1}, 'stop_after_epochs'),
        ({'batch_size': 43}, 'do not fill one batch of 43'),
    ],
)
def test_refuses_what_makes_no_run(changes, match):
  with pytest.raises(UserError, match=match):
    plan_lib.make_plan(_config(**changes), 7)


def test_is_frozen():
  plan = plan_lib.make_plan(_config(), 7)
  with pytest.raises(dataclasses.FrozenInstanceError):
    plan.batch_size = 3


def test_where_it_saves_amid_an_epoch_a_dispatch_ends():
  plan = plan_lib.make_plan(
      _config(batch_size=1, log_every_steps=6, checkpoint_every_steps=4), 10
  )
  assert [step for step in range(1, 11) if plan.saves_at(step)] == [4, 8]
  ends = [steps[-1] for steps in plan.dispatches(0, 100)]
  assert ends[:6] == [4, 6, 8, 10, 12, 16]
  assert ends == [steps[-1] for steps in plan.dispatches(3, 100)]
  never = plan_lib.make_plan(_config(), 10)
  assert not any(never.saves_at(step) for step in range(20))
