"""Names of the raw weights and of their exponential moving average (EMA).

A checkpoint stores the EMA next to the trained weights. The weights are called
'raw' or 'ema'. A score is called `NAME` for the raw weights and `ema_NAME` for
the EMA.
"""

from collections.abc import Mapping
from typing import Any

RAW, EMA = 'raw', 'ema'
PREFIX = f'{EMA}_'


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
