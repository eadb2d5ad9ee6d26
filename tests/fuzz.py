"""Bounds and checks for fuzzing what reads files."""

from collections.abc import Iterator
import contextlib
import resource
import signal

from hypothesis import HealthCheck, settings


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
  """Returns the settings of a test: the same examples each time.

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
