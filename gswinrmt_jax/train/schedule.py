"""The steps after which a run logs, validates, saves and ends."""

import dataclasses
import functools

import ml_collections

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import counted


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
    # If batches are larger than epochs, a step may end several.
    return self.validated_epochs.get(step, min(epoch, self.num_epochs))

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
    UserError: If the epochs do not fill a single batch, or if the run would
      stop after an epoch that a run to the end does not validate: another
      validation could change which checkpoint is the best.
  """
  records = config.num_steps * config.batch_size
  # One of `num_epochs` and `num_steps` is 0.
  num_epochs = config.num_epochs or -(-records // num_examples)
  stop, every = config.stop_after_epochs, config.eval_every_epochs
  if stop < num_epochs and stop % every:
    raise UserError(
        f'config.stop_after_epochs is {stop}: must be a multiple of '
        f'config.eval_every_epochs, {every}, so that the same epochs are '
        'validated as in a run that does not stop'
    )
  schedule = Schedule(
      num_examples=num_examples,
      batch_size=config.batch_size,
      num_epochs=num_epochs,
      stop_after_epochs=min(stop or num_epochs, num_epochs),
      eval_every_epochs=every,
      log_every_steps=config.log_every_steps,
      checkpoint_every_steps=config.checkpoint_every_steps,
      mixed_epochs=_mixed_epochs(config, num_epochs),
      num_steps=config.num_steps,
  )
  if not schedule.stop_step:
    epochs = counted(schedule.stop_after_epochs, 'epoch')
    raise UserError(
        f'{counted(num_examples, "image")} in {epochs} do not fill one batch '
        f'of {config.batch_size}: lower config.batch_size'
    )
  return schedule


def _mixed_epochs(config, num_epochs):
  if config.token_label_weight:  # Token labelling mixes boxes until the end.
    return num_epochs
  augment = config.augment
  if not augment.mix_prob or not (augment.mixup_alpha or augment.cutmix_alpha):
    return 0
  if augment.mix_off_epochs >= num_epochs:
    raise UserError(
        f'config.augment.mix_off_epochs is {augment.mix_off_epochs}: must be '
        f'below {num_epochs}, the epochs of this run; '
        'config.augment.mix_prob=0 turns mixing off'
    )
  return num_epochs - augment.mix_off_epochs
