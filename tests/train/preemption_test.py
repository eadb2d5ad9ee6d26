"""Tests preemption with real signals to this process.

How whole runs end is tested in `faults_signals_test`.
"""

import os
import signal
import threading

import pytest

from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import Stopped
from gswinrmt_jax.train import preemption


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_a_second_is_as_ever(number, capfd):
  taken, preempted = [], preemption.Preemption()
  before = signal.signal(number, lambda *_: taken.append('before'))
  try:
    with preempted, preempted.defer():
      assert preempted.received is None
      os.kill(os.getpid(), number)
      assert preempted.received == number and not taken
      os.kill(os.getpid(), number)
      assert taken == ['before']
    assert signal.getsignal(number) is not before
    os.kill(os.getpid(), number)
    assert len(taken) == 2
  finally:
    signal.signal(number, before)
  said = capfd.readouterr().err
  assert said.count('\n') == 2 and signal.Signals(number).name in said


@pytest.mark.parametrize('first', [signal.SIGTERM, signal.SIGHUP])
def test_a_lost_session_may_send_a_second_hangup(first):
  taken, preempted = [], preemption.Preemption()
  numbers = signal.SIGHUP, signal.SIGTERM
  before = [signal.signal(n, lambda n, _: taken.append(n)) for n in numbers]
  try:
    with preempted, preempted.defer():
      os.kill(os.getpid(), first)
      os.kill(os.getpid(), signal.SIGHUP)
      assert preempted.received == first and not taken
    os.kill(os.getpid(), signal.SIGHUP)
    assert len(taken) == 1
  finally:
    for number, handler in zip(numbers, before, strict=True):
      signal.signal(number, handler)


def test_where_no_step_is_under_way_it_ends_at_once():
  preempted = preemption.Preemption()
  before = signal.getsignal(signal.SIGTERM)
  said = 'stopped by SIGTERM; the same command resumes from the last checkp'
  with pytest.raises(Stopped, match=said) as stopped:
    with preempted:
      os.kill(os.getpid(), signal.SIGTERM)
  assert stopped.value.signal == signal.SIGTERM
  assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_nothing_is_changed():
  before, seen = signal.getsignal(signal.SIGTERM), []

  def listen():
    with preemption.Preemption():
      seen.append(signal.getsignal(signal.SIGTERM))

  thread = threading.Thread(target=listen)
  thread.start()
  thread.join()
  assert seen == [before]


def test_what_was_ignored_stays_so():
  """A shell makes a run that it starts with `&` ignore Ctrl-C."""
  preempted = preemption.Preemption()
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with preempted, preempted.defer():
      os.kill(os.getpid(), signal.SIGINT)
      assert preempted.received is None
      assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGINT, before)


def test_a_lost_terminal_changes_nothing():
  """After a SIGHUP, writing to the terminal may fail."""
  preempted = preemption.Preemption()
  before, closed = os.dup(2), os.pipe()
  hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
  try:
    os.dup2(closed[1], 2)
    os.close(closed[0])
    with preempted, preempted.defer():
      os.kill(os.getpid(), signal.SIGHUP)
      assert preempted.requested(agree=False) == signal.SIGHUP
  finally:
    signal.signal(signal.SIGHUP, hangup)
    os.dup2(before, 2)
    os.close(before)
    os.close(closed[1])


@pytest.mark.parametrize(('agree', 'stop'), [(True, 15), (False, 0)])
def test_several_processes_stop_where_they_agree(monkeypatch, agree, stop):
  """The signal was sent to another process."""
  monkeypatch.setattr(processes, 'share', lambda: (0, 2))
  monkeypatch.setattr(processes, 'greatest', lambda number: max(number, 15))
  assert preemption.Preemption().requested(agree=agree) == stop
