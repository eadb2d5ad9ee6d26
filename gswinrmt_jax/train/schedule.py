"""At which steps a run validates and ends."""

import bisect
from collections.abc import Iterator
import dataclasses
import functools

import ml_collections

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import profiler

_POSITIVE = (
    'batch_size',
    'eval_batch_size',
    'num_epochs',
    'eval_every_epochs',
    'log_every_steps',
)
_MOST_STEPS = 2**31 - 1  # that the optimiser counts


@dataclasses.dataclass(frozen=True)
class Plan:
  """Epochs in steps. Batches straddle epochs and no record is dropped.

  Attributes:
    num_examples: Records in an epoch.
    batch_size: Records in a step.
    num_epochs: Of the whole schedule.
    stop_after_epochs: Where this run ends; `num_epochs` for the whole.
    eval_every_epochs: Epochs from one validation to the next.
    checkpoint_every_steps: Steps from one checkpoint amid an epoch to the next;
      0 for none.
    log_every_steps: Steps from one reading of the metrics to the next.
    profiled: The steps to trace.
  """

  num_examples: int
  batch_size: int
  num_epochs: int
  stop_after_epochs: int
  eval_every_epochs: int
  log_every_steps: int
  checkpoint_every_steps: int = 0
  profiled: range = range(0)

  def epoch_end(self, epoch: int) -> int:
    """Returns the steps in `epoch` epochs, `floor(epoch n / B)`."""
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
  def stop_step(self) -> int:
    """The step after which this run ends."""
    return self.epoch_end(self.stop_after_epochs)

  @functools.cached_property
  def milestones(self) -> dict[int, int]:
    """Steps after which to validate and save, each with its epoch."""
    epochs = range(
        self.eval_every_epochs,
        self.stop_after_epochs + 1,
        self.eval_every_epochs,
    )
    steps = {self.epoch_end(epoch): epoch for epoch in epochs}
    steps[self.stop_step] = self.stop_after_epochs
    steps.pop(0, None)  # epochs shorter than a step
    return steps

  def reads_at(self, step: int) -> bool:
    """Returns whether the metrics are read after a step."""
    return step % self.log_every_steps == 0 or step in self.milestones

  def saves_at(self, step: int) -> bool:
    """Returns whether a step is saved wherever in its epoch it is."""
    every = self.checkpoint_every_steps
    return every > 0 and step % every == 0

  def dispatches(self, start: int, most: int) -> Iterator[range]:
    """Yields the steps after `start`, in pieces for the devices.

    A piece ends where metrics are read, the run validates or saves, or a trace
    begins or ends, at the latest; which steps are in one follows from that and
    from where it begins.

    Args:
      start: Updates made before.
      most: Steps in a piece.
    """
    ends = {*self.milestones}
    if self.profiled:
      ends |= {self.profiled[0] - 1, self.profiled[-1]}
    ends = sorted(ends)
    every = [
        n for n in (self.log_every_steps, self.checkpoint_every_steps) if n
    ]
    while start < self.stop_step:
      # Not all at once: a run may have any number of steps.
      next_ends = [n - start % n + start for n in every]
      end = min(ends[bisect.bisect_right(ends, start)], *next_ends)
      piece = range(start + 1, min(start + most, end) + 1)
      yield piece
      start = piece[-1]


def make_plan(config: ml_collections.ConfigDict, num_examples: int) -> Plan:
  """Returns the plan of a recipe.

  Raises:
    UserError: If a number is out of range, or no step results.
  """
  for field in _POSITIVE:
    if config[field] < 1:
      raise UserError(f'config.{field} is {config[field]}: must be at least 1')
  for field in ('seed', 'steps_per_dispatch', 'checkpoint_every_steps'):
    if config[field] < 0:
      raise UserError(
          f'config.{field} is {config[field]}: must not be negative'
      )
  stop = config.stop_after_epochs or config.num_epochs
  if not 0 < stop <= config.num_epochs:
    raise UserError(
        f'config.stop_after_epochs is {stop}: must be from 0 to '
        f'config.num_epochs, {config.num_epochs}'
    )
  plan = Plan(
      num_examples=num_examples,
      batch_size=config.batch_size,
      num_epochs=config.num_epochs,
      stop_after_epochs=stop,
      eval_every_epochs=config.eval_every_epochs,
      checkpoint_every_steps=config.checkpoint_every_steps,
      log_every_steps=config.log_every_steps,
  )
  if plan.total_steps > _MOST_STEPS:
    raise UserError(
        f'{plan.total_steps:,} steps are more than {_MOST_STEPS:,}: lower '
        'config.num_epochs or raise config.batch_size'
    )
  if not plan.stop_step:
    raise UserError(
        f'{stop} epochs of {num_examples} images do not fill one batch of '
        f'{config.batch_size}: lower config.batch_size'
    )
  profiled = profiler.parse(config.profile_steps, plan.stop_step)
  return dataclasses.replace(plan, profiled=profiled)
