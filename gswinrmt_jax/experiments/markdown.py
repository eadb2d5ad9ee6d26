"""Cells and tables in Markdown."""

from collections.abc import Iterable, Sequence

from gswinrmt_jax.experiments.statistics import Difference, Mean

NOTHING = '\N{EN DASH}'  # not measured, or not printed
_MINUS = '\N{MINUS SIGN}'
_PLUS_MINUS = '\N{PLUS-MINUS SIGN}'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Returns a table; every row has as many cells as the head."""
  lines = [head, ['---'] * len(head), *rows]
  return '\n'.join(_line(line) for line in lines)


def percent(mean: Mean | None) -> str:
  """Returns `85.90` or, over several runs, `85.90 +- 0.12`, of a share."""
  return number(mean and _scaled(mean, 100), '.2f')


def number(mean: Mean | None, form: str) -> str:
  """Returns a mean, with its deviation if there is one."""
  if mean is None:
    return NOTHING
  text = f'{mean.mean:{form}}'.replace('-', _MINUS)
  return text if mean.std is None else f'{text} {_PLUS_MINUS} {mean.std:{form}}'


def signed(value: float | None, digits: int = 2) -> str:
  """Returns a difference with its sign, in the width of a minus."""
  if value is None:
    return NOTHING
  return f'{value:+.{digits}f}'.replace('-', _MINUS)


def points(found: Difference | None) -> str:
  """Returns a difference of shares in points, with its interval."""
  if found is None:
    return NOTHING
  if found.low is None:
    return signed(100 * found.mean)
  low, high = (signed(100 * end) for end in (found.low, found.high))
  return f'{signed(100 * found.mean)} ({low} to {high})'


def numbers(found: Iterable[int]) -> str:
  """Returns references to the list of runs: `[1] [4]`."""
  return ' '.join(f'[{number}]' for number in found)


def _line(cells):
  # An empty cell is one space, as in the tables of the documents.
  text = '|'.join(f' {cell} ' if cell else ' ' for cell in cells)
  return f'|{text}|'


def _scaled(mean, factor):
  std = None if mean.std is None else mean.std * factor
  return Mean(mean.n, mean.mean * factor, std)
