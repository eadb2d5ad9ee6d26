"""The steps after which a run logs, validates, saves and ends."""

import dataclasses
import functools

import ml_collections

from gswinrmt_jax.errors import UserError

_MOST_STEPS = 2**31 - 1  # that the optimizer counts


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Epochs in steps. Batches straddle epochs and no record is dropped.

  Attributes:
    num_examples: Records per epoch.
    batch_size: Records per step.
    num_epochs: Epochs of the whole schedule.
    stop_after_epochs: Epoch after which this run ends.
    eval_every_epochs: Epochs between validations.
    log_every_steps: Steps between readings of the metrics.
    checkpoint_every_steps: Steps between mid-epoch checkpoints; 0: none.
    mixed_epochs: First epochs, in which batches are mixed; 0: in none.
  """

  num_examples: int
  batch_size: int
  num_epochs: int
  stop_after_epochs: int
  eval_every_epochs: int
  log_every_steps: int
  checkpoint_every_steps: int = 0
  mixed_epochs: int = 0

  def epoch_end(self, epoch: int) -> int:
    """Returns the last step of an epoch, `floor(epoch n / B)`."""
    return epoch * self.num_examples // self.batch_size

  def epoch_of(self, step: int) -> int:
    """Returns the epoch that a step belongs to, both counted from 1."""
    epoch = -(-step * self.batch_size // self.num_examples)
    return min(epoch, self.num_epochs)

  @property
  def total_steps(self) -> int:
    """Steps of the whole schedule."""
    return self.epoch_end(self.num_epochs)

  @property
  def mixed_steps(self) -> int:
    """Steps before mixing ends."""
    return self.epoch_end(self.mixed_epochs)

  @property
  def stop_step(self) -> int:
    """The step after which this run ends."""
    return self.epoch_end(self.stop_after_epochs)

  @functools.cached_property
  def validated_epochs(self) -> dict[int, int]:
    """The epochs that end with a validation, by their last step."""
    every = self.eval_every_epochs
    epochs = range(every, self.stop_after_epochs + 1, every)
    steps = {self.epoch_end(epoch): epoch for epoch in epochs}
    steps[self.stop_step] = self.stop_after_epochs
    steps.pop(0, None)  # epochs shorter than a step
    return steps

  def logs_at(self, step: int) -> bool:
    """Whether metrics are read after a step: before every checkpoint, too."""
    due = step % self.log_every_steps == 0
    return due or self.validates_at(step) or self.saves_at(step)

  def validates_at(self, step: int) -> bool:
    """Whether a step is followed by a validation, and a checkpoint."""
    return step in self.validated_epochs

  def saves_at(self, step: int) -> bool:
    """Whether a step is followed by a checkpoint wherever in its epoch."""
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
    UserError: If there is no step, or there are more than can be counted.
  """
  schedule = Schedule(
      num_examples=num_examples,
      batch_size=config.batch_size,
      num_epochs=config.num_epochs,
      stop_after_epochs=config.stop_after_epochs or config.num_epochs,
      eval_every_epochs=config.eval_every_epochs,
      log_every_steps=config.log_every_steps,
      checkpoint_every_steps=config.checkpoint_every_steps,
      mixed_epochs=_mixed_epochs(config),
  )
  if schedule.total_steps > _MOST_STEPS:
    raise UserError(
        f'{schedule.total_steps:,} steps are more than {_MOST_STEPS:,}: lower '
        'config.num_epochs or raise config.batch_size'
    )
  if not schedule.stop_step:
    raise UserError(
        f'{schedule.stop_after_epochs} epochs of {num_examples} images do not '
        f'fill one batch of {config.batch_size}: lower config.batch_size'
    )
  return schedule


def _mixed_epochs(config):
  if config.token_label_weight:  # whose boxes are mixed to the end
    return config.num_epochs
  augment = config.augment
  if not augment.mix_prob or not (augment.mixup_alpha or augment.cutmix_alpha):
    return 0
  return config.num_epochs - augment.mix_off_epochs
