"""What a field of a config is: a default, a meaning, bounds, a condition."""

from collections.abc import Callable
import dataclasses
import math
from typing import Any

from gswinrmt_jax.errors import did_you_mean, UserError

_LARGEST = {int: 2**31 - 1, float: 3.4e38}  # of int32 and float32

# Sets of tasks, for `Field.tasks`.
CLASSES = frozenset({'classification'})
PIXELS = frozenset({'segmentation'})
BOXES = frozenset({'detection'})
ALL = CLASSES | PIXELS | BOXES
# The section of a config that has the head of a task's models.
SECTIONS = {'segmentation': 'segmenter', 'detection': 'detector'}


@dataclasses.dataclass(frozen=True)
class When:
  """The condition under which a field is read.

  Attributes:
    needs: The condition in words, such as 'optimizer.schedule=poly'.
    holds: Whether it holds for a config.
  """

  needs: str
  holds: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of a config.

  Attributes:
    default: Value unless a recipe sets another; also sets the type. A pair of
      integers is a size in pixels; another pair is the ends of a range.
    meaning: Description with unit, which `--help` prints.
    at_least: Smallest allowed value; a range must start above 0.
    at_most: Largest allowed value, or largest end of a range.
    below: Exclusive upper bound.
    choices: Allowed values.
    free: Whether a run may resume with another value, because the field affects
      neither updates nor validation, apart from rounding.
    tasks: The tasks whose models read it: `CLASSES`, `PIXELS` and `BOXES` for
      classifiers, segmenters and detectors.
    off: The value in recipes of other tasks, if it is not the default: what
      turns off a feature that they do not support.
    when: The condition under which it is read; None: always.
  """

  default: Any
  meaning: str
  _: dataclasses.KW_ONLY
  at_least: float = 0
  at_most: float | None = None
  below: float | None = None
  choices: tuple[str, ...] = ()
  free: bool = False
  tasks: frozenset[str]
  off: Any = None
  when: When | None = None

  def unread(self, config: Any) -> str:
    """Returns what the config needs for the field to be read, '' if nothing."""
    own = task(config)
    if own not in self.tasks:
      if 'classification' in self.tasks:
        return f"{SECTIONS[own]}.head=''"
      sections = (SECTIONS[name] for name in SECTIONS if name in self.tasks)
      return ' or '.join(f'{section}.head' for section in sections)
    return '' if not self.when or self.when.holds(config) else self.when.needs

  def wanted(self, value: Any) -> str:
    """Returns what a value must be instead, or '' if it is allowed."""
    if self.choices:
      if value in self.choices:
        return ''
      near = did_you_mean(str(value), self.choices)
      return ' or '.join(f"'{one}'" for one in self.choices) + near
    kind = type(self.default)
    if kind is bool:
      return '' if isinstance(value, bool) else 'True or False'
    if kind is str:
      return '' if isinstance(value, str) else 'text'
    if kind is tuple:
      return self._wanted_pair(value)
    if not _is_number(value, kind):
      return f'a {"whole " * (kind is int)}number, {self._range(kind)}'
    return '' if self._holds(value, kind) else self._range(kind)

  def _wanted_pair(self, value):
    kind = type(self.default[0])
    pair = isinstance(value, tuple) and len(value) == 2
    pair = pair and all(_is_number(each, kind) for each in value)
    if kind is int:
      if pair and all(self._holds(side, int) for side in value):
        return ''
      return f'two whole numbers, each {self._range(int)}'
    if pair and 0 < value[0] <= value[1] <= (self.at_most or math.inf):
      return ''
    limit = f', which is not above {self.at_most}' if self.at_most else ''
    return f'two numbers above 0, the first not above the second{limit}'

  def _holds(self, value, kind):
    most = _LARGEST[kind] if self.at_most is None else self.at_most
    # Written so that NaN is out of range too.
    below = self.below is None or value < self.below
    return self.at_least <= value <= most and below

  def _range(self, kind):
    if self.below is not None:
      return f'at least {self.at_least:g} and below {self.below:g}'
    if self.at_most is not None:
      return f'from {self.at_least:g} to {self.at_most:,}'
    limit = f', at most {_LARGEST[int]:,}' if kind is int else ''
    return f'at least {self.at_least:g}{limit}'


def task(config: Any) -> str:
  """Returns 'segmentation', 'detection' or 'classification'."""
  dense = (name for name in SECTIONS if config[SECTIONS[name]]['head'])
  return next(dense, 'classification')


def refuse(path: str, value: Any, wanted: str) -> None:
  """Raises an error saying what a field must be, unless `wanted` is empty."""
  if wanted:
    shown = ' '.join(repr(value).split())  # the repr of a group has many lines
    shown = shown if len(shown) < 80 else f'{shown[:80]} ...'
    raise UserError(f'config.{path} is {shown}: must be {wanted}')


def _is_number(value, kind):
  kinds = (int, float) if kind is float else int
  number = isinstance(value, kinds) and not isinstance(value, bool)
  return number and not (kind is float and abs(value) > _LARGEST[float])
