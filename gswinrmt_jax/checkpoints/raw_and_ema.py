"""Names of the raw weights and of their exponential moving average (EMA).

A checkpoint stores the EMA next to the trained weights. The weights are called
'raw' or 'ema'. A score is called `NAME` for the raw weights and `ema_NAME` for
the EMA.
"""

from collections.abc import Iterable, Mapping
import math
from typing import Any

RAW, EMA = 'raw', 'ema'
PREFIX = f'{EMA}_'
# Scores that decide which weights are better: the first one that there is, of
# detectors with and without masks, of segmenters and of classifiers.
_DECIDING = ('mask_ap', 'ap', 'mean_iou', 'accuracy')


def pack(variables: Mapping[str, Any], average: Any) -> dict[str, Any]:
  """Returns raw weights and their EMA in one tree, as a checkpoint stores them.

  Both are `{'params', 'batch_stats'}`; without an EMA, `average` is None.
  """
  return dict(variables) if average is None else {**variables, EMA: average}


def unpack(saved: Mapping[str, Any]) -> dict[str, Any]:
  """Splits what `pack` returned into 'raw' and, if there is one, 'ema'."""
  raw = {name: tree for name, tree in saved.items() if name != EMA}
  return {RAW: raw, EMA: saved[EMA]} if EMA in saved else {RAW: raw}


def merged(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Merges the scores of 'raw' and 'ema'; the latter get the prefix `ema_`."""
  average = scores.get(EMA, {})
  prefixed = {PREFIX + name: value for name, value in average.items()}
  return {**scores[RAW], **prefixed}


def better(scores: Mapping[str, Any], split: str = '') -> tuple[float, str]:
  """Returns the higher score in merged scores, and whether 'raw' or 'ema'.

  The score is the accuracy, the mean IoU of a segmenter, or the average
  precision of a detector. If the loss is not finite, it is -1, which is below
  every other. A tie counts as 'raw'.

  Args:
    scores: As `merged` returns them.
    split: Prefix of their names, such as `'val_'`.
  """
  name = deciding(scores, split)

  def score(prefix):
    finite = math.isfinite(scores.get(f'{prefix}loss', 0.0))
    return scores.get(f'{prefix}{name}', -1.0) if finite else -1.0

  raw, ema = score(split), score(split + PREFIX)
  return (ema, EMA) if ema > raw else (raw, RAW)


def deciding(scores: Mapping[str, Any], split: str = '') -> str:
  """Returns the name of the score that decides; arguments as in `better`."""
  return next(name for name in _DECIDING if f'{split}{name}' in scores)


def best_epoch(epochs: Iterable[Mapping[str, Any]]) -> tuple[float, int, str]:
  """Returns the best score of a log's epochs, its epoch, and 'raw' or 'ema'.

  A tie goes to the later epoch.
  """
  scores = [(better(entry, 'val_'), entry['epoch']) for entry in epochs]
  return max((score, epoch, whose) for (score, whose), epoch in scores)
