"""Checkpoints: the two latest, to resume, and the best on validation data."""

from collections.abc import Callable, Mapping
import errno
import os
import pathlib
import threading
from typing import Any

from gswinrmt_jax.checkpoints import checkpoint_files, checkpoint_io, retained
from gswinrmt_jax.checkpoints.checkpoint_io import Restored
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import interruption, RunError, UserError

# What the system may say, amid a long message of TensorStore's.
_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


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
    self._writing = None
    self._failure = None

  def save(
      self,
      fields: Callable[[], Mapping[str, Any]],
      *,
      accuracy: float | None,
      meta: Mapping[str, Any],
  ) -> None:
    """Saves in the background, under the state's step.

    The caller waits for the save before this, and for the fields.

    Args:
      fields: Returns `checkpoint_io.fields` of a state, on the host; as
        `snapshot.Snapshots` keeps it.
      accuracy: On validation data: decides which checkpoint is the best. None
        for one from amid an epoch, which goes when a later one is complete.
      meta: JSON values.

    Raises:
      RunError: If the one before could not be written.
    """
    self.wait()
    values = fields()
    if not processes.is_first():
      return  # It was needed for what it has of the state.
    meta = {**meta, 'accuracy': accuracy}
    self._writing = threading.Thread(
        target=self._write, args=(values, meta), daemon=True
    )
    self._writing.start()

  def check(self) -> None:
    """Raises what went wrong in the background; see `wait`."""
    with processes.together():
      self._check()

  def _check(self):
    if self._failure is not None:
      failure, self._failure = self._failure, None
      if not self.directory.parent.exists():
        raise RunError(
            f'{self.directory.parent} was removed while it was trained in'
        ) from failure
      steps = self.steps()
      last = f'the last is that of step {steps[-1]}' if steps else 'none yet'
      raise RunError(
          f'cannot save a checkpoint in {self.directory} ({_reason(failure)}); '
          f'those before it are kept: {last}. The same command goes on from '
          'there'
      ) from failure

  def wait(self) -> None:
    """Waits until all is on disk; of several processes all have to.

    Raises:
      RunError: If something could not be written.
    """
    self._join()
    self.check()

  def close(self) -> None:
    """Waits for what this process writes, and lets go of the folder."""
    self._join()
    self._check()

  def _join(self):
    if self._writing is not None:
      self._writing.join()
      self._writing = None

  def abandon(self) -> None:
    """Does not wait for what is being written: it may end with the process."""
    self._writing = self._failure = None

  def clean(self) -> None:
    """Removes what a killed run left half written or half removed."""
    checkpoint_files.remove_leftovers(self.directory)

  def steps(self) -> list[int]:
    """Returns the steps that are on disk, oldest first."""
    if not self.directory.is_dir():
      return []
    names = [path.name for path in self.directory.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())

  def accuracy(self, step: int) -> float | None:
    """Returns the validation accuracy of a step; None if there is none."""
    meta = checkpoint_io.read_meta(self._folder(step))
    return meta and meta['accuracy']

  def newest_meta(self) -> tuple[pathlib.Path, dict[str, Any]] | None:
    """Returns where the newest is whose meta can be read, and its meta."""
    for step in reversed(self.steps()):
      meta = checkpoint_io.read_meta(self._folder(step))
      if meta is not None:
        return self._folder(step), meta
    return None

  def restore_best(self, target: Any) -> Restored | None:
    """Returns the best checkpoint that can be read, as `restore_latest`.

    The best has the highest validation accuracy, the latest of several with the
    same. One without any, from amid an epoch, is better than nothing.
    """
    accuracies = {step: self.accuracy(step) for step in self.steps()}
    ranked = sorted(
        (-1.0 if accuracy is None else accuracy, step)
        for step, accuracy in accuracies.items()
    )
    return self._restore_last([step for _, step in ranked], target)

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
        self._tell(step, self._reason(step, error))
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
          f'({self._reason(step, error)}); others: {others or "none"}'
      ) from error

  def _restore(self, step, target):
    try:
      return checkpoint_io.read(self._folder(step), target)
    except SystemError as error:
      # A signal is no damage.
      raise interruption(error) or error from None

  def _write(self, state, meta):
    """Writes a checkpoint, then removes what it supersedes; a thread's work."""
    try:
      # Not with its parents: a run folder that is gone is not made again.
      self.directory.mkdir(exist_ok=True)
      self._screen()
      checkpoint_io.write(self._folder(int(state['step'])), state, meta)
      accuracies = {step: self.accuracy(step) for step in self.steps()}
      for step in retained.superseded(accuracies):
        checkpoint_files.remove(self._folder(step))
    except Exception as error:  # Orbax and TensorStore raise all kinds.
      self._failure = error

  def _folder(self, step):
    return self.directory / str(step)

  def _screen(self):
    """Sets aside what cannot be told the accuracy of."""
    damaged = [
        step
        for step in self.steps()
        if checkpoint_io.read_meta(self._folder(step)) is None
    ]
    for step in damaged:
      self._tell(step, self._reason(step, 'no meta'))
    self._move_away(damaged)

  def _reason(self, step, error):
    """Names damaged files, of which errors on reading say little."""
    damage = checkpoint_files.damage(self._folder(step))
    if not damage:
      return _reason(error)
    return damage[0] + (f' and {len(damage) - 1} more' if damage[1:] else '')

  def _tell(self, step, reason):
    self._warn(
        f'checkpoint {step} in {self.directory} cannot be read ({reason}): '
        'leaving it out'
    )

  def _move_away(self, steps):
    """Makes room, since a step that exists would not be saved again."""
    if not self._read_only:
      for step in steps:
        checkpoint_files.set_aside(self._folder(step))


def _reason(error):
  """Returns a line; of what the system said, that alone."""
  text = str(error).strip() or type(error).__name__
  for code in _SYSTEM:
    if os.strerror(code) in text:
      return os.strerror(code)
  line = text.splitlines()[0]
  return line if len(line) <= 160 else line[:157] + '...'
