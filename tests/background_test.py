"""What is done beside the loop: the latest, and errors are told."""

import threading

import pytest

from gswinrmt_jax.train import background


def test_nobody_waits_and_what_is_overtaken_is_left_out():
  here, found = background.Background(), []
  started, gate = threading.Event(), threading.Event()

  def work(name):
    started.set()
    assert gate.wait(20)
    found.append((name, threading.get_ident()))

  here.begin(work, 'first')
  assert started.wait(20)
  for name in ('second', 'third'):
    here.begin(work, name)
  assert not found
  gate.set()
  here.wait()
  assert [name for name, _ in found] == ['first', 'third']
  assert threading.get_ident() not in {thread for _, thread in found}
  here.close()


@pytest.mark.parametrize('told_by', ['begin', 'wait'])
def test_an_error_is_raised_once_by_what_comes_next(told_by):
  here, done = background.Background(), []
  here.begin(lambda: 1 / 0)
  _until_failed(here)
  with pytest.raises(ZeroDivisionError):
    here.wait() if told_by == 'wait' else here.begin(done.append, 1)
  here.wait()
  here.close()
  assert done == [1] * (told_by == 'begin')


def _until_failed(here):
  """Until the thread has done what it was given, and has kept the error."""
  (future,) = here._begun
  assert isinstance(future.exception(20), ZeroDivisionError)


def test_closing_waits():
  here, done = background.Background(), []
  pause = threading.Event()
  here.begin(lambda: (pause.wait(0.05), done.append(1)))
  here.close()
  assert done
