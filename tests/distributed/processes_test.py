"""Tests how processes join, know their index, and decide together."""

import jax
import pytest
import several

from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import UserError


def test_one_process_is_the_first_and_asks_nobody():
  assert processes.is_first() and processes.share() == (0, 1)
  assert processes.greatest(-3) == -3
  processes.check_agree('configs', {'seed': 0})
  with pytest.raises(KeyError), processes.fail_together():
    raise KeyError


def _start_two(found, *arguments):
  """Starts two processes as SLURM would; each writes to its own file."""
  port = several.free_port()
  return [
      several.start(
          'processes_program.py',
          file,
          *arguments,
          devices=2,
          environment={
              'SLURM_JOB_ID': '1',
              'SLURM_STEP_NODELIST': 'localhost',
              'SLURM_NTASKS': '2',
              'SLURM_PROCID': str(index),
              'SLURM_LOCALID': str(index),
              'JAX_COORDINATOR_PORT': str(port),
          },
      )
      for index, file in enumerate(found)
  ]


def test_two_processes_join_by_what_slurm_says_and_agree(tmp_path):
  found = tmp_path / 'first', tmp_path / 'second'
  several.said(*_start_two(found))
  first, second = (file.read_text().splitlines() for file in found)
  assert first == [
      'share 0 2 True 4',
      'told once',
      'greatest 1 0',
      'refused True seeds of the 2 processes differ: start all with the same '
      'command and data',
      'failed another process failed; it says why',
      'rows (8,) [0, 1, 2, 3, 4, 5, 6, 7]',
      'copied True [0, 1, 2]',
  ]
  assert second == [
      'share 1 2 False 4',
      *first[2:4],
      'failed the disk is full',
      *first[5:],
  ]


@pytest.mark.slow
def test_one_that_fails_alone_takes_the_other_along(tmp_path):
  """After half a minute: it waits to leave, while the other waits for a sum."""
  found = tmp_path / 'first', tmp_path / 'second'
  _, second = several.said(*_start_two(found, 'fails'), status=None)
  assert 'gswinrmt: a picture cannot be read' in second
  first = found[0].read_text()
  assert 'failed another process' in first and 'rows' not in first


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (('host:1', '2', ''), '--process=: must be HOST:PORT and two'),
        (
            ('host', '2', '0'),
            '=host --processes=2 --process=0: must be HOST:PORT and two',
        ),
        (('host:1', '2', '2'), r'cannot join \(process_id must be less'),
    ],
)
def test_what_is_said_of_the_processes_is_checked(
    arguments, message, monkeypatch
):
  def refuse(**who):
    assert who['process_id'] >= who['num_processes']
    raise ValueError('process_id must be less than num_processes')

  monkeypatch.setattr(jax.distributed, 'initialize', refuse)
  with pytest.raises(UserError, match=message):
    processes.start(*arguments)


@pytest.mark.parametrize(
    ('environment', 'joins'),
    [
        ({}, False),
        ({'SLURM_NTASKS': '8'}, False),  # the batch script, without srun
        ({'SLURM_NTASKS': '8', 'SLURM_STEP_NODELIST': 'a'}, True),
        ({'SLURM_NTASKS': '1', 'SLURM_STEP_NODELIST': 'a'}, False),
        ({'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_RANK': '0'}, True),
    ],
)
def test_a_launcher_is_recognised(environment, joins, monkeypatch):
  for variables in processes._LAUNCHERS:  # set where the tests run
    for name in variables:
      monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  joined = []
  monkeypatch.setattr(
      jax.distributed, 'initialize', lambda **who: joined.append(who)
  )
  before = jax.config.jax_enable_preemption_service
  processes.start()
  jax.config.update('jax_enable_preemption_service', before)
  assert [set(who) for who in joined] == [{'shutdown_timeout_seconds'}] * joins
