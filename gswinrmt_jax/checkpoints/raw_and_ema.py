"""Names of the raw weights and of their moving average (EMA).

A checkpoint has the average next to the weights that are trained. Weights are
called 'raw' or 'ema'. A score of the raw weights is NAME, of the average
`ema_NAME`.
"""

from collections.abc import Mapping
from typing import Any

RAW, EMA = 'raw', 'ema'
PREFIX = f'{EMA}_'
# What decides which weights are better: of segmenters, and of classifiers.
_DECIDING = ('mean_iou', 'accuracy')


def joined(variables: Mapping[str, Any], average: Any) -> dict[str, Any]:
  """Returns weights and average in one tree, as a checkpoint has them.

  Args:
    variables: The raw weights, `{'params', 'batch_stats'}`.
    average: Their average, or None if none is kept.
  """
  return dict(variables) if average is None else {**variables, EMA: average}


def by_name(saved: Mapping[str, Any]) -> dict[str, Any]:
  """Splits what `joined` returned into 'raw' and, if there is one, 'ema'."""
  raw = {name: tree for name, tree in saved.items() if name != EMA}
  return {RAW: raw, EMA: saved[EMA]} if EMA in saved else {RAW: raw}


def merged(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Returns scores of 'raw' and 'ema' in one table, with `ema_` prefixed."""
  average = scores.get(EMA, {})
  prefixed = {PREFIX + name: value for name, value in average.items()}
  return {**scores[RAW], **prefixed}


def better(scores: Mapping[str, Any], split: str = '') -> tuple[float, str]:
  """Returns the higher score in merged scores, and 'raw' or 'ema'.

  The score is the accuracy, of a segmenter the mean IoU. Equal ones count as
  'raw'.

  Args:
    scores: As `merged` returns them.
    split: Prefix of their names, such as `'val_'`.
  """
  name = next(name for name in _DECIDING if f'{split}{name}' in scores)
  raw = scores[f'{split}{name}']
  ema = scores.get(f'{split}{PREFIX}{name}', -1.0)
  return (ema, EMA) if ema > raw else (raw, RAW)
