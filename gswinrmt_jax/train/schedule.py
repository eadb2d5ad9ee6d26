"""The schedule of a run: learning rate, logging, validation, saving, end."""

from collections.abc import Sequence
import dataclasses
import functools
import math

import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from gswinrmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Converts epochs to steps, and says what follows each step.

  Batches straddle epochs, and no record is dropped.

  Attributes:
    num_examples: Records per epoch.
    batch_size: Records per step.
    num_epochs: Epochs of the whole schedule.
    stop_after_epochs: Epoch after which this run ends.
    eval_every_epochs: Epochs between validations.
    log_every_steps: Steps between readings of the metrics.
    checkpoint_every_steps: Steps between mid-epoch checkpoints; 0 for none.
    mixed_epochs: Initial epochs in which batches are mixed; 0 for none.
    num_steps: Steps of the whole schedule if its last epoch is cut short; 0 if
      it ends with an epoch.
  """

  num_examples: int
  batch_size: int
  num_epochs: int
  stop_after_epochs: int
  eval_every_epochs: int
  log_every_steps: int
  checkpoint_every_steps: int = 0
  mixed_epochs: int = 0
  num_steps: int = 0

  def epoch_end(self, epoch: int) -> int:
    """Returns the last step of an epoch, at most `floor(epoch n / B)`."""
    step = epoch * self.num_examples // self.batch_size
    return min(step, self.num_steps or step)

  def epoch_of(self, step: int) -> int:
    """Returns the epoch of a step, both counted from 1."""
    epoch = -(-step * self.batch_size // self.num_examples)
    return min(epoch, self.num_epochs)

  @property
  def total_steps(self) -> int:
    """Steps of the whole schedule."""
    return self.epoch_end(self.num_epochs)

  @property
  def mixed_steps(self) -> int:
    """Number of initial steps with mixed batches."""
    return self.epoch_end(self.mixed_epochs)

  @property
  def stop_step(self) -> int:
    """The step after which this run ends."""
    return self.epoch_end(self.stop_after_epochs)

  @functools.cached_property
  def validated_epochs(self) -> dict[int, int]:
    """Maps the last step of each validated epoch to that epoch."""
    every = self.eval_every_epochs
    epochs = range(every, self.stop_after_epochs + 1, every)
    steps = {self.epoch_end(epoch): epoch for epoch in epochs}
    steps[self.stop_step] = self.stop_after_epochs
    steps.pop(0, None)  # epochs that end before the first step
    return steps

  def logs_at(self, step: int) -> bool:
    """Whether metrics are read after a step; always before a checkpoint."""
    due = step % self.log_every_steps == 0
    return due or self.validates_at(step) or self.saves_at(step)

  def validates_at(self, step: int) -> bool:
    """Whether a validation and a checkpoint follow a step."""
    return step in self.validated_epochs

  def saves_at(self, step: int) -> bool:
    """Whether a periodic checkpoint follows a step, anywhere in its epoch."""
    every = self.checkpoint_every_steps
    return every > 0 and step % every == 0


def from_config(
    config: ml_collections.ConfigDict, num_examples: int
) -> Schedule:
  """Returns the schedule of a config.

  Args:
    config: A checked config.
    num_examples: Records per epoch.

  Raises:
    UserError: If the epochs do not fill a single batch, or as in `check_stop`.
  """
  records = config.num_steps * config.batch_size
  # One of `num_epochs` and `num_steps` is 0.
  num_epochs = config.num_epochs or -(-records // num_examples)
  check_stop(config, num_epochs)
  schedule = Schedule(
      num_examples=num_examples,
      batch_size=config.batch_size,
      num_epochs=num_epochs,
      stop_after_epochs=min(config.stop_after_epochs or num_epochs, num_epochs),
      eval_every_epochs=config.eval_every_epochs,
      log_every_steps=config.log_every_steps,
      checkpoint_every_steps=config.checkpoint_every_steps,
      mixed_epochs=_mixed_epochs(config, num_epochs),
      num_steps=config.num_steps,
  )
  if not schedule.stop_step:
    raise UserError(
        f'{schedule.stop_after_epochs} epochs of {num_examples} images do not '
        f'fill one batch of {config.batch_size}: lower config.batch_size'
    )
  return schedule


def check_stop(config: ml_collections.ConfigDict, num_epochs: int) -> None:
  """Refuses to stop after an epoch that a run to the end does not validate.

  Another validation could change which checkpoint is the best.

  Args:
    config: A checked config.
    num_epochs: Epochs of the whole schedule.

  Raises:
    UserError: If the run would stop after such an epoch.
  """
  stop, every = config.stop_after_epochs, config.eval_every_epochs
  if stop < num_epochs and stop % every:
    raise UserError(
        f'config.stop_after_epochs is {stop}: must be a multiple of '
        f'config.eval_every_epochs, {every}, so that the same epochs are '
        'validated as in a run that does not stop'
    )


def _mixed_epochs(config, num_epochs):
  if config.token_label_weight:  # Token labelling mixes boxes until the end.
    return num_epochs
  augment = config.augment
  if not augment.mix_prob or not (augment.mixup_alpha or augment.cutmix_alpha):
    return 0
  if augment.mix_off_epochs > num_epochs:
    raise UserError(
        f'config.augment.mix_off_epochs is {augment.mix_off_epochs}: must be '
        f'at most {num_epochs}, the epochs of this run'
    )
  return num_epochs - augment.mix_off_epochs


def learning_rate(
    config: ml_collections.ConfigDict, schedule: Schedule
) -> optax.Schedule:
  """Returns the learning rate of a config, by the number of updates made.

  Args:
    config: A checked config.
    schedule: The run's schedule. The warm-up ends at step `warmup_steps`, or
      `floor(warmup_epochs n / B)`.

  Raises:
    UserError: If the warm-up fills the run.
  """
  fields = config.optimizer
  ends = {
      'start': fields.warmup_learning_rate,
      'final': fields.final_learning_rate,
  }
  warmup = fields.warmup_epochs * schedule.num_examples / schedule.batch_size
  steps = {
      'warmup_steps': fields.warmup_steps or int(warmup),
      'total_steps': schedule.total_steps,
  }
  if steps['warmup_steps'] >= schedule.total_steps:
    raise UserError(
        f'the warm-up of {steps["warmup_steps"]:,} steps fills the whole run '
        f'of {schedule.total_steps:,}: lower config.optimizer.warmup_epochs or '
        'warmup_steps, or train longer'
    )
  if fields.schedule == 'cosine':
    return warmup_cosine(fields.learning_rate, **steps, **ends)
  if fields.schedule == 'poly':
    return warmup_poly(
        fields.learning_rate, power=fields.power, **steps, **ends
    )
  rates = epoch_learning_rates(
      fields.learning_rate,
      warmup_epochs=fields.warmup_epochs,
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
