"""Bounds and checks for fuzzing what reads files."""

from collections.abc import Callable, Iterator
import contextlib
import random
import resource
import signal
import time
from typing import Any

from hypothesis import given, HealthCheck, seed, settings
from hypothesis import strategies as st


@contextlib.contextmanager
def bounded(seconds: int, gigabytes: float) -> Iterator[None]:
  """Fails if the context takes longer, or raises peak memory by more."""

  def late(*_):
    raise AssertionError(f'not done after {seconds} s')

  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  handler = signal.signal(signal.SIGALRM, late)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
  grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
  assert grown < gigabytes * 2**20, f'{grown / 2**20:.1f} GB more'


def check_line(said: str) -> None:
  """Checks that a message is one line of readable length."""
  said = said.strip()
  assert said and '\n' not in said and 'Traceback' not in said, said
  assert len(said) < 1500, said


def few(count: int) -> settings:
  """Returns the settings of an everyday test: the same examples each time.

  Args:
    count: The number of examples.
  """
  return settings(
      max_examples=count,
      derandomize=True,
      database=None,
      deadline=None,
      suppress_health_check=list(HealthCheck),
  )


def campaign(
    what: str,
    count: int,
    examples: st.SearchStrategy,
    check: Callable[[Any], None],
) -> None:
  """Checks many examples, different ones each time, and prints their seed.

  Args:
    what: A name of what is fuzzed, for the log.
    count: The number of examples.
    examples: The strategy that draws them.
    check: A function that raises if an example fails.
  """
  drawn = random.SystemRandom().randrange(2**32)
  done = 0

  @seed(drawn)
  @settings(few(count), derandomize=False)
  @given(examples)
  def run(example):
    nonlocal done
    check(example)
    done += 1

  print(f'\n{what}: seed {drawn}', flush=True)
  before = time.monotonic()
  run()
  minutes = (time.monotonic() - before) / 60
  print(f'{what}: {done:,} examples, nothing found, {minutes:.1f} min')
