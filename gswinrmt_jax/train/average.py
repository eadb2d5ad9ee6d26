"""The moving average of parameters and BatchNorm statistics (EMA).

It is kept beside the weights that are trained, evaluated beside them, and never
trained from. Its names: weights are 'raw' or 'ema', and a figure of the average
is called `ema_NAME` beside the raw one's NAME.
"""

from collections.abc import Mapping
from typing import Any

import jax

RAW, EMA = 'raw', 'ema'
PREFIX = f'{EMA}_'
_IMAGES = 512  # what `config.ema_decay` is the decay of


def step_decay(decay: float, batch_size: int) -> float:
  """Returns the decay of one step, `decay ** (batch_size / 512)`.

  So the average reaches as many images back whatever the batch.
  """
  return decay ** (batch_size / _IMAGES)


def update(average: Any, variables: Any, decay: float) -> Any:
  """Returns `average <- decay average + (1 - decay) variables`.

  Written as a step towards the value: `decay` itself is so close to 1 that its
  rounding would matter. What a step would move by less than half of a float32's
  last digit stays where it is.

  Args:
    average: As before the step.
    variables: The weights behind the step, and the statistics.
    decay: Of a step.
  """
  share = 1.0 - decay
  return jax.tree.map(
      lambda mean, value: mean + share * (value - mean), average, variables
  )


def beside(variables: Mapping[str, Any], average: Any) -> dict[str, Any]:
  """Returns both as a checkpoint has them; where none is kept, it is None."""
  return dict(variables) if average is None else {**variables, EMA: average}


def by_name(saved: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what `beside` put together: 'raw' and, if there is one, 'ema'."""
  raw = {name: tree for name, tree in saved.items() if name != EMA}
  return {RAW: raw, EMA: saved[EMA]} if EMA in saved else {RAW: raw}


def merged(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the figures of 'raw' and 'ema' as one table, `ema_` before one."""
  average = figures.get(EMA, {})
  prefixed = {PREFIX + name: value for name, value in average.items()}
  return {**figures[RAW], **prefixed}


def better(figures: Mapping[str, Any], split: str = '') -> tuple[float, str]:
  """Returns the higher accuracy of merged figures, and whose it is.

  The raw weights', if both are the same.

  Args:
    figures: As `merged`.
    split: What stands before their names, 'val_'.
  """
  raw = figures[f'{split}accuracy']
  ema = figures.get(f'{split}{PREFIX}accuracy', -1.0)
  return (ema, EMA) if ema > raw else (raw, RAW)
