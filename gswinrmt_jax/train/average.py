"""The moving average of parameters and BatchNorm statistics (EMA).

It is kept beside the weights that are trained, evaluated beside them, and never
trained from. Its names: weights are 'raw' or 'ema', and a figure of the average
is called `ema_NAME` beside the raw one's NAME.
"""

from typing import Any

import jax

from gswinrmt_jax.checkpoints.raw_and_ema import (
    beside,
    better,
    by_name,
    EMA,
    merged,
    PREFIX,
    RAW,
)

__all__ = [  # for callers that have not moved yet
    'EMA',
    'PREFIX',
    'RAW',
    'beside',
    'better',
    'by_name',
    'merged',
    'step_decay',
    'update',
]
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
