"""Inputs for fuzzing the commands and readers, and checks of their answers."""

from collections.abc import Callable, Iterator
import contextlib
import io
import random
import resource
import signal
import time
from typing import Any

from hypothesis import given, HealthCheck, seed, settings
from hypothesis import strategies as st

_NUMBERS = (
    '0 1 -1 2 3 7 32 1000 65536 2147483647 2147483648 9223372036854775808 '
    '1000000000000000000000000000000 0x10 1e3 1e308 1e309 1e-320 -0.0 nan inf '
    '-inf .5 0.999 1.0 1_000 ٣ True'
).split()
_WORDS = (
    '= None none true False auto float16 float32 bfloat16 rmt_t swat_compact '
    'rmt_s_tl rmt_deit_s softmax sigmoid linear causal split_half interleaved '
    'learned fixed signed depthwise pointwise patch patch_norm merge blocked '
    'masked proj norm swish digits train train[:1] train[5:5] train[:200%] val '
    'memory disk decode random_resized cosine epochs /dev/null ../.. ~ '
    "tests/fixtures %s{0} __import__('os')._exit(3)"
).split()
_ODD = ('', ' ', '\x00', '\n', '\ud800', '9' * 5000, '(' * 200)


def values() -> st.SearchStrategy[str]:
  """Returns values of overrides: numbers, words, tuples, text."""
  number = st.one_of(
      st.sampled_from(_NUMBERS),
      st.integers(-5, 70).map(str),
      st.floats(allow_nan=True).map(repr),
  )
  stages = st.lists(number, max_size=6).map(lambda of: f'({", ".join(of)},)')
  words = st.sampled_from((*_WORDS, *_ODD))
  return st.one_of(number, stages, words, st.text(max_size=9))


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


def answer(command: Callable[[], int]) -> str:
  """Returns the error message of a guarded command, '' if it succeeds."""
  said = io.StringIO()
  with (
      contextlib.redirect_stderr(said),
      contextlib.redirect_stdout(io.StringIO()),
  ):
    status = command()
  if not status:
    return ''
  assert status == 2 and said.getvalue().startswith('gswinrmt: ')
  check_line(said.getvalue())
  return said.getvalue()


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
