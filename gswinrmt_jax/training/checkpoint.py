"""Checkpoints: the two latest, to resume, and the best on validation data.

A checkpoint has two items: `state`, the whole `TrainState`, and `meta`, JSON
with the recipe, the position in the data and checksums of the values. Beside
`weights_folder` this is the only file that knows Orbax.
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import json
import pathlib
from typing import Any
import zlib

import jax
import numpy as np

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import devices
from gswinrmt_jax.training.state import TrainState


def checksum(tree: Any) -> int:
  """Returns the CRC-32 of all values, leaf after leaf.

  Orbax keeps none of its own: a bit that flips on disk would go unseen.
  """
  total = 0
  for leaf in jax.tree.leaves(tree):
    total = zlib.crc32(np.ascontiguousarray(devices.fetch(leaf)), total)
  return total


@dataclasses.dataclass(frozen=True)
class Restored:
  """What was read: `tree` as asked for, `meta` as saved, at which `step`."""

  tree: Any
  meta: dict[str, Any]
  step: int


class Checkpoints:
  """The checkpoints of one run folder."""

  def __init__(
      self,
      directory: pathlib.Path,
      *,
      read_only: bool = False,
      warn: Callable[[str], None] = print,
  ):
    """Looks at a folder; makes it when something is saved.

    Args:
      directory: Where the steps are.
      read_only: Whether damaged checkpoints stay where they are.
      warn: Told, in a line, what was skipped and why.
    """
    self.directory = directory.absolute()  # Orbax fails late otherwise.
    self._read_only = read_only
    self._warn = warn
    self._manager = None

  def save(
      self, state: TrainState, *, accuracy: float, meta: Mapping[str, Any]
  ) -> None:
    """Saves in the background, under the state's step.

    Args:
      state: What to save; may be donated as soon as this returns.
      accuracy: On validation data: decides which checkpoint is the best.
      meta: JSON values.
    """
    import orbax.checkpoint as ocp

    if self._manager is None:
      self._screen()
      self._manager = _open_manager(self.directory)
    fields = _fields(state)
    sums = {name: checksum(part) for name, part in fields.items()}
    with self._told():
      self._manager.save(
          int(state.step),
          args=ocp.args.Composite(
              state=ocp.args.PyTreeSave(fields),
              meta=ocp.args.JsonSave({**meta, 'crc32': sums}),
          ),
          metrics={'accuracy': float(accuracy)},
      )

  def wait(self) -> None:
    """Waits until all is on disk.

    Raises:
      UserError: If something could not be written.
    """
    if self._manager is not None:
      with self._told():
        self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits and lets go of the folder."""
    manager, self._manager = self._manager, None
    if manager is not None:
      with self._told():
        manager.close()

  def steps(self) -> list[int]:
    """Returns the steps that are on disk, oldest first."""
    if not self.directory.is_dir():
      return []
    names = [path.name for path in self.directory.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())

  def accuracy(self, step: int) -> float | None:
    """Returns the validation accuracy of a step, None if it cannot be read."""
    path = self.directory / str(step) / 'metrics' / 'metrics'
    try:
      return float(json.loads(path.read_text())['accuracy'])
    except (OSError, ValueError, KeyError):
      return None

  def restore_best(self, target: Any) -> Restored | None:
    """Returns the best checkpoint that can be read, as `restore_latest`.

    The best has the highest validation accuracy; of several with the same it
    is the latest, which is the one Orbax keeps.
    """
    ranked = [(self.accuracy(step) or 0.0, step) for step in self.steps()]
    return self._restore_last([step for _, step in sorted(ranked)], target)

  def restore_latest(self, target: Any) -> Restored | None:
    """Returns the newest checkpoint that can be read; None if there is none.

    One that cannot be read is named, skipped and, unless read-only, moved to
    `damaged_checkpoints` beside the folder.

    Args:
      target: Shapes, dtypes and shardings of a `TrainState`, or of some of
        its fields, such as `{'params', 'batch_stats', 'ema'}`.

    Raises:
      UserError: If there are checkpoints and none can be read.
    """
    return self._restore_last(self.steps(), target)

  def _restore_last(self, steps, target):
    """Returns the last of the steps that can be read."""
    damaged = []
    for step in reversed(steps):
      try:
        restored = self._restore(step, target)
      except Exception as error:  # Whatever a broken file raises.
        self._tell(step, _first_line(error))
        damaged.append(step)
      else:
        # Only now: if none can be read, the fault may lie elsewhere.
        self._move_away(damaged)
        return restored
    if steps:
      raise UserError(
          f'none of the checkpoints {sorted(steps)} of '
          f'{self.directory.parent} can be '
          'read: train into another --workdir'
      )
    return None

  def restore(self, step: int, target: Any) -> Restored:
    """Returns the checkpoint of one step; `target` as in `restore_latest`.

    Raises:
      UserError: If it is not there or cannot be read.
    """
    steps = self.steps()
    if step not in steps:
      known = ', '.join(map(str, steps)) or 'none'
      raise UserError(
          f'no checkpoint {step} in {self.directory} (has: {known})'
      )
    try:
      return self._restore(step, target)
    except Exception as error:
      others = ', '.join(str(other) for other in steps if other != step)
      raise UserError(
          f'checkpoint {step} in {self.directory} cannot be read '
          f'({_first_line(error)}); others: {others or "none"}'
      ) from error

  def _restore(self, step, target):
    import orbax.checkpoint as ocp

    whole = isinstance(target, TrainState)
    item = _fields(target) if whole else target
    arguments = ocp.args.Composite(
        state=ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=not whole,
        ),
        meta=ocp.args.JsonRestore(),
    )
    # Not by the manager: it opens nothing if the metrics of one step are bad.
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
      read = reader.restore(self.directory / str(step), args=arguments)
    sums = read.meta.get('crc32', {})  # The first versions saved none.
    for name, part in read.state.items():
      if name in sums and checksum(part) != sums[name]:
        raise ValueError(f'the checksum of {name} differs: the file changed')
    tree = TrainState(**read.state) if whole else read.state
    return Restored(tree=tree, meta=read.meta, step=step)

  @contextlib.contextmanager
  def _told(self):
    """Says where writing failed; Orbax and TensorStore raise all kinds."""
    try:
      yield
    except Exception as error:
      raise UserError(
          f'cannot save a checkpoint in {self.directory} '
          f'({_first_line(error)}); those before it are kept'
      ) from error

  def _screen(self):
    """Sets aside steps without metrics: the manager would not open."""
    damaged = [step for step in self.steps() if self.accuracy(step) is None]
    for step in damaged:
      self._tell(step, 'no metrics')
    self._move_away(damaged)

  def _tell(self, step, reason):
    self._warn(
        f'checkpoint {step} in {self.directory} cannot be read ({reason}): '
        'leaving it out'
    )

  def _move_away(self, steps):
    """Makes room, since a step that exists would not be saved again."""
    if self._read_only or not steps:
      return
    shelf = self.directory.parent / 'damaged_checkpoints'
    shelf.mkdir(exist_ok=True)
    for step in steps:
      place, count = shelf / str(step), 1
      while place.exists():
        place, count = shelf / f'{step}_{count}', count + 1
      (self.directory / str(step)).rename(place)


def _fields(state):
  """Returns a state as a dict, without what it does not keep.

  Checkpoints from before there was an average have no place for a None.
  """
  fields = {
      field.name: getattr(state, field.name)
      for field in dataclasses.fields(state)
  }
  return {name: part for name, part in fields.items() if part is not None}


def _open_manager(directory):
  import orbax.checkpoint as ocp

  def accuracy(metrics):
    return metrics['accuracy']

  keep = ocp.checkpoint_managers
  return ocp.CheckpointManager(
      directory,
      options=ocp.CheckpointManagerOptions(
          # Without `best_fn` the metrics would not be written, and with
          # `max_to_keep` it would delete a latest that is no best.
          best_fn=accuracy,
          best_mode='max',
          preservation_policy=keep.AnyPreservationPolicy(
              [
                  keep.LatestN(n=2),
                  keep.BestN(
                      get_metric_fn=accuracy,
                      n=1,
                      keep_checkpoints_without_metrics=False,
                  ),
              ]
          ),
      ),
  )


def _first_line(error):
  text = str(error).strip() or type(error).__name__
  line = text.splitlines()[0]
  return line if len(line) <= 160 else line[:157] + '...'
