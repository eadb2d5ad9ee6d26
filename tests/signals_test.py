"""Real signals, to this process."""

import os
import signal
import threading

import pytest

from gswinrmt_jax.errors import Stopped
from gswinrmt_jax.train import preemption


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_a_second_is_as_ever(number, capfd):
  taken, heard = [], preemption.Signals()
  before = signal.signal(number, lambda *_: taken.append('before'))
  try:
    with heard.heard(), heard.deferred():
      assert heard.received is None
      os.kill(os.getpid(), number)
      assert heard.received == number and not taken
      os.kill(os.getpid(), number)
      assert taken == ['before']
    assert signal.getsignal(number) is not before
    os.kill(os.getpid(), number)
    assert len(taken) == 2
  finally:
    signal.signal(number, before)
  said = capfd.readouterr().err
  assert said.count('\n') == 2 and signal.Signals(number).name in said


def test_where_no_step_is_under_way_it_ends_at_once():
  heard = preemption.Signals()
  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(Stopped, match='stopped by SIGTERM') as stopped:
    with heard.heard():
      os.kill(os.getpid(), signal.SIGTERM)
  assert stopped.value.signal == signal.SIGTERM
  assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_what_python_ignored_is_raised_when_asked_for():
  class Ending:

    def __del__(self):
      os.kill(os.getpid(), signal.SIGTERM)

  heard = preemption.Signals()
  with heard.heard():
    heard.check()
    Ending()
    assert heard.received == signal.SIGTERM
    with pytest.raises(Stopped, match='stopped by SIGTERM'):
      heard.check()


def test_in_another_thread_nothing_is_changed():
  before, seen = signal.getsignal(signal.SIGTERM), []

  def listen():
    with preemption.Signals().heard():
      seen.append(signal.getsignal(signal.SIGTERM))

  thread = threading.Thread(target=listen)
  thread.start()
  thread.join()
  assert seen == [before]


def test_what_was_ignored_stays_so():
  """Ctrl-C, by a shell that started the run behind `&`."""
  heard = preemption.Signals()
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with heard.heard(), heard.deferred():
      os.kill(os.getpid(), signal.SIGINT)
      assert heard.received is None
      assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGINT, before)
