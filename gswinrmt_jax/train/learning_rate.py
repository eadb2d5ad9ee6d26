"""Learning rates by the number of updates made."""

import collections
from collections.abc import Sequence
import math

import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train.schedule import Schedule


def from_config(
    optimizer: ml_collections.ConfigDict, schedule: Schedule
) -> optax.Schedule:
  """Returns the learning rate of a config, by the number of updates made.

  Args:
    optimizer: The section `optimizer` of a checked config.
    schedule: The run's schedule. The warm-up ends at step `warmup_steps`, or
      `floor(warmup_epochs n / B)`.

  Raises:
    UserError: If the warm-up fills the run, a drop lies within the warm-up or
      after the run, or whole epochs would have a rate of 0.
  """
  ends = {
      'start': optimizer.warmup_learning_rate,
      'final': optimizer.final_learning_rate,
  }
  warmup = optimizer.warmup_epochs * schedule.num_examples / schedule.batch_size
  steps = {
      'warmup_steps': optimizer.warmup_steps or int(warmup),
      'total_steps': schedule.total_steps,
  }
  if steps['warmup_steps'] >= schedule.total_steps:
    raise UserError(
        f'the warm-up of {steps["warmup_steps"]:,} steps fills the whole run '
        f'of {schedule.total_steps:,}: lower config.optimizer.warmup_epochs or '
        'warmup_steps, or train longer'
    )
  if optimizer.schedule == 'cosine':
    return warmup_cosine(optimizer.learning_rate, **steps, **ends)
  if optimizer.schedule == 'poly':
    return warmup_poly(
        optimizer.learning_rate, power=optimizer.power, **steps, **ends
    )
  if optimizer.schedule == 'drops':
    drops = [schedule.epoch_end(epoch) for epoch in optimizer.drop_epochs]
    first, last = sorted(drops)
    if not steps['warmup_steps'] <= first <= last < schedule.total_steps:
      raise UserError(
          f'config.optimizer.drop_epochs is {optimizer.drop_epochs}: both must '
          'be after the warm-up and before the end of the run'
      )
    return warmup_drops(
        optimizer.learning_rate,
        warmup_steps=steps['warmup_steps'],
        drops=drops,
        start=optimizer.warmup_learning_rate,
    )
  if optimizer.warmup_epochs and not optimizer.warmup_learning_rate:
    raise UserError(
        "config.optimizer.schedule='epochs' gives the first two epochs the "
        'rate config.optimizer.warmup_learning_rate, which is 0: raise it, '
        'such as to 1e-6'
    )
  rates = epoch_learning_rates(
      optimizer.learning_rate,
      warmup_epochs=optimizer.warmup_epochs,
      num_epochs=schedule.num_epochs,
      **ends,
  )
  epochs = range(1, schedule.num_epochs + 1)
  return piecewise(rates, [schedule.epoch_end(epoch) for epoch in epochs])


def warmup_cosine(
    peak: float,
    *,
    warmup_steps: int,
    total_steps: int,
    start: float = 0.0,
    final: float = 0.0,
) -> optax.Schedule:
  r"""Returns a linear warm-up followed by half a cosine.

      lr(t) = start + (peak - start) t / W                            t < W
      lr(t) = final + (peak - final) (1 + cos(pi (t - W) / (T - W))) / 2
                                                                      t >= W

  `W` is `warmup_steps`, below `T`, which is `total_steps`.
  """
  return optax.warmup_cosine_decay_schedule(
      start if warmup_steps else peak,
      peak,
      warmup_steps,
      total_steps,
      end_value=final,
  )


def warmup_poly(
    peak: float,
    *,
    power: float,
    warmup_steps: int,
    total_steps: int,
    start: float = 0.0,
    final: float = 0.0,
) -> optax.Schedule:
  r"""Returns a polynomial decay with warm-up, as used for RMT's segmenters.

      decay(t) = final + (peak - final) (1 - t / T)^power
      lr(t) = (r + (1 - r) t / W) decay(t), r = start / peak          t < W
      lr(t) = decay(t)                                                t >= W

  `W` is `warmup_steps`, below `T`, which is `total_steps`. A
  power of 1 is linear. As in mmcv, the decay already begins at step 0, so a
  warm-up does not reach the peak.
  """
  decay = optax.polynomial_schedule(peak, final, power, total_steps)
  if not warmup_steps:
    return decay
  begin = start / peak if peak else 1.0
  factor = optax.linear_schedule(begin, 1.0, warmup_steps)
  return lambda step: factor(step) * decay(step)


def warmup_drops(
    peak: float,
    *,
    warmup_steps: int,
    drops: Sequence[int],
    start: float = 0.0,
) -> optax.Schedule:
  r"""Returns a linear warm-up and drops, as used for RMT's detectors.

      lr(t) = start + (peak - start) t / W                            t < W
      lr(t) = peak / 10^d, after d of the drops                       t >= W

  Args:
    peak: See above.
    warmup_steps: `W`, before the first drop.
    drops: Steps after which the rate is divided by ten; by a hundred after one
      that is there twice.
    start: See above.
  """
  counts = collections.Counter(drop - warmup_steps for drop in drops)
  factors = {drop: 0.1**count for drop, count in counts.items()}
  constant = optax.piecewise_constant_schedule(peak, factors)
  warmup = optax.linear_schedule(start, peak, max(1, warmup_steps))
  return optax.join_schedules([warmup, constant], [warmup_steps])


def epoch_learning_rates(
    peak: float,
    *,
    warmup_epochs: float,
    num_epochs: int,
    start: float = 0.0,
    final: float = 0.0,
) -> list[float]:
  r"""Returns the learning rate of each epoch, as used for RMT.

      lr(e) = start + (peak - start) t / W                            t < W
      lr(e) = final + (peak - final) (1 + cos(pi t / T)) / 2          t >= W
      t = max(e - 1, 0)

  The released code sets the rate after each epoch, from the number of the epoch
  just finished, so epochs 0 and 1 share the first value. Its cosine starts with
  the warm-up, so it is past its peak when the warm-up ends. The rates equal
  those in the released training logs, digit by digit.

  `W` is `warmup_epochs`, below `T`, which is `num_epochs`. At epoch `T + 1`,
  the cosine would reach `final`.
  """
  rates = []
  for epoch in range(num_epochs):
    t = max(epoch - 1, 0)
    if t < warmup_epochs:
      rates.append(start + (peak - start) * t / warmup_epochs)
    else:
      half = (1 + math.cos(math.pi * t / num_epochs)) / 2
      rates.append(final + (peak - final) * half)
  return rates


def piecewise(rates: Sequence[float], ends: Sequence[int]) -> optax.Schedule:
  """Returns a schedule that is `rates[e]` throughout epoch e.

  Args:
    rates: Learning rate of each epoch.
    ends: Last step of each epoch, counted from 1. Update `ends[e]`, counted
      from 0, is the first of epoch e + 1.
  """
  values = np.asarray(rates, np.float32)
  # The last epoch's rate also applies after its end.
  edges = np.asarray(ends[:-1], np.int32)

  def rate(count):
    epoch = jnp.searchsorted(edges, count, side='right')
    return jnp.asarray(values)[epoch]

  return rate
