"""Checkpoints of a run, saved asynchronously and verified when restored.

    STEP/state           the arrays of the train state, by Orbax
    STEP/meta/metadata   JSON: config, step, epoch, validation accuracy,
                         CRC-32 of each array and of this file

A checkpoint is written whole or not at all. The latest and the best are kept:
the latest to resume, the best by its validation accuracy. Of several processes
the first writes, and decides which checkpoint all of them restore.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import json
import os
import pathlib
import re
import threading
from typing import Any

import jax
import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import checksums
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import interruption, RunError, UserError

_STATE, _META = 'state', 'meta/metadata'
_LATEST = 2  # kept of each kind: the newest could turn out to be damaged
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# TensorStore raises `ValueError` for every failure, and quotes the error number
# in its message if the operating system refused to read.
_SYSTEM = re.compile(r"(?:os_error_code='|OS error )(\d+)")


class DamagedError(Exception):
  """A file of a checkpoint is missing, or its content is not what was saved."""


@dataclasses.dataclass(frozen=True)
class Restored:
  """A checkpoint that was read: `tree` like the target, `meta` as saved."""

  tree: Any
  meta: dict[str, Any]
  step: int


class Checkpointer:
  """Saves and restores the checkpoints of one run folder.

  Not `orbax.checkpoint.CheckpointManager`: it removes an old checkpoint file by
  file under its own name, so that a process killed there leaves half a one, and
  it renames what it has not synced to the disk.
  """

  def __init__(
      self,
      directory: pathlib.Path,
      *,
      read_only: bool = False,
      warn: Callable[[str], None] = print,
  ):
    """Looks at a directory, which is made when something is saved.

    Args:
      directory: Where the steps are.
      read_only: Whether damaged checkpoints stay where they are.
      warn: Called with a line for each checkpoint that is left out.

    Raises:
      UserError: If it is a file.
    """
    self.directory = directory.absolute()  # Orbax needs that.
    self._read_only = read_only
    self._warn = warn
    self._writing = None
    self._failure = None
    if self.directory.exists() and not self.directory.is_dir():
      raise UserError(
          f'{self.directory} is a file where the folder of the checkpoints '
          'should be: move it away, or choose another --workdir'
      )

  def save(
      self, state: Any, *, accuracy: float | None, meta: Mapping[str, Any]
  ) -> None:
    """Copies a state to the host and starts to write it, under its step.

    Every process has to call this. It waits for the save before, and returns
    when the arrays may be donated.

    Args:
      state: A dataclass or mapping of array trees, with `step`; each process
        has all of it. Fields that are None are left out.
      accuracy: On validation data, of a segmenter its mean IoU; decides which
        checkpoint is the best. None for a mid-epoch checkpoint, which goes when
        an epoch's is complete.
      meta: JSON values.

    Raises:
      RunError: If the save before failed.
    """
    self.wait()
    if not processes.is_first():
      return
    values = jax.device_get(fields(state))
    if jax.default_backend() == 'cpu':
      # These may be the very buffers that are donated next.
      values = jax.tree.map(np.array, values)
    self._writing = threading.Thread(
        target=self._write,
        args=(values, {**meta, 'accuracy': accuracy}),
        daemon=True,  # A second Ctrl-C ends the process while it writes.
    )
    self._writing.start()

  def wait(self) -> None:
    """Waits until all is on the disk; every process has to call this.

    Raises:
      RunError: If something could not be written.
    """
    self._join()
    self.check()

  def check(self) -> None:
    """Raises the error of a save that failed; every process has to call it."""
    with processes.together():
      self._check()

  def close(self) -> None:
    """Waits until what this process writes is on the disk."""
    self._join()
    self._check()

  def abandon(self) -> None:
    """Stops waiting for a running save; it may end with the process."""
    self._writing = self._failure = None

  def clean(self) -> None:
    """Removes incomplete and superseded checkpoints of a killed run."""
    files.remove_leftovers(self.directory)
    accuracies, damaged = self._accuracies()
    if not damaged:
      self._remove_superseded(accuracies)

  def steps(self) -> list[int]:
    """Returns the steps that are on the disk, in order."""
    if not self.directory.is_dir():
      return []
    names = [path.name for path in self.directory.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())

  def newest_meta(self) -> tuple[pathlib.Path, dict[str, Any]] | None:
    """Returns the newest checkpoint whose meta is intact, and that meta."""
    for step in reversed(self.steps()):
      try:
        return self._folder(step), read_meta(self._folder(step))
      except DamagedError:
        continue  # `restore_latest` says so.
    return None

  def restore_latest(self, target: Any) -> Restored | None:
    """Restores the newest checkpoint; every process has to call this.

    A damaged one is named, left out and, unless read-only, moved to
    `damaged_checkpoints` next to the directory.

    Args:
      target: Shapes, dtypes and shardings: of a whole state, or a dict of some
        of its fields, such as `{'params', 'batch_stats', 'ema'}`.

    Returns:
      The checkpoint; None if there is none.

    Raises:
      UserError: If all are damaged, or one cannot be read for another reason.
    """
    return self._restore_first(reversed(self.steps()), target)

  def restore_best(self, target: Any) -> Restored | None:
    """Restores the best checkpoint; otherwise like `restore_latest`.

    It has the highest validation accuracy, and is the latest of equal ones. A
    mid-epoch checkpoint, which has none, is better than nothing.
    """
    with processes.together():
      accuracies, damaged = self._accuracies()
    ranked = sorted(
        (-1.0 if accuracy is None else accuracy, step)
        for step, accuracy in accuracies.items()
    )
    steps = [step for _, step in reversed(ranked)]
    self._tell(damaged)
    return self._restore_first(steps, target, damaged)

  def restore(self, step: int, target: Any) -> Restored:
    """Restores the checkpoint of one step; `target` as in `restore_latest`.

    Raises:
      UserError: If there is none, or it cannot be read.
    """
    others = [str(other) for other in self.steps() if other != step]
    known = ', '.join(others) or 'none'
    if step not in self.steps():
      raise UserError(
          f'no checkpoint {step} in {self.directory} (has: {known})'
      )
    try:
      return self._restore(step, target)
    except DamagedError as error:
      raise UserError(
          f'checkpoint {step} in {self.directory} is damaged ({error}); '
          f'others: {known}'
      ) from error

  def _folder(self, step):
    return self.directory / str(step)

  def _join(self):
    if self._writing is not None:
      self._writing.join()
      self._writing = None

  def _check(self):
    if self._failure is None:
      return
    failure, self._failure = self._failure, None
    if not self.directory.parent.exists():
      raise RunError(
          f'{self.directory.parent} was deleted during training'
      ) from failure
    steps = self.steps()
    last = f'the last is that of step {steps[-1]:,}' if steps else 'none yet'
    raise RunError(
        f'cannot save a checkpoint in {self.directory} ({_reason(failure)}); '
        f'earlier ones are kept: {last}. The same command resumes from there'
    ) from failure

  def _write(self, tree, meta):
    """Writes a checkpoint, then removes what it supersedes; in a thread."""
    try:
      # Without its parents: a run folder that was removed is not made again.
      self.directory.mkdir(exist_ok=True)
      accuracies, damaged = self._accuracies()
      self._tell(damaged)
      self._set_aside(damaged)
      step = int(tree['step'])
      write(self._folder(step), tree, meta)
      self._remove_superseded({**accuracies, step: meta['accuracy']})
    except Exception as error:  # Orbax and TensorStore raise all kinds.
      self._failure = error

  def _remove_superseded(self, accuracies):
    for step in superseded(accuracies):
      files.remove(self._folder(step))

  def _accuracies(self):
    """Returns the accuracies by step, and why the meta of others is damaged."""
    accuracies, damaged = {}, {}
    for step in self.steps():
      try:
        accuracies[step] = read_meta(self._folder(step))['accuracy']
      except DamagedError as error:
        damaged[step] = error
    return accuracies, damaged

  def _restore_first(self, steps, target, damaged=()):
    """Restores the first of these steps that is not damaged."""
    damaged = list(damaged)
    for step in _as_the_first_process(steps):
      try:
        restored = self._restore(step, target)
      except DamagedError as error:
        self._tell({step: error})
        damaged.append(step)
      else:
        # Only now: if none can be read, the cause may lie elsewhere.
        self._set_aside(damaged)
        return restored
    if damaged:
      raise UserError(
          f'none of the checkpoints {sorted(damaged)} of '
          f'{self.directory.parent} can be read: train into another --workdir'
      )
    return None

  def _restore(self, step, target):
    """Reads a checkpoint, in all processes or in none.

    Raises:
      DamagedError: If process 0 found it damaged.
      UserError: If a process cannot read it for another reason.
    """
    restored = failure = None
    try:
      restored = read(self._folder(step), target)
    except BaseException as error:
      # Code in C turns the exception of a signal into a SystemError.
      failure = interruption(error) or error
    if not processes.greatest(failure is not None):
      return restored
    damaged = isinstance(failure, DamagedError)
    if processes.greatest(damaged and processes.is_first()):
      raise failure if damaged else DamagedError('found by process 0')
    ours = isinstance(failure, Exception) and not isinstance(failure, UserError)
    if failure and not ours:
      raise failure
    reason = _reason(failure) if failure else 'by another process'
    raise UserError(
        f'checkpoint {step} in {self.directory} cannot be read now ({reason}); '
        'it stays where it is: try again after fixing that'
    ) from failure

  def _tell(self, damaged):
    for step, reason in damaged.items():
      self._warn(
          f'checkpoint {step} in {self.directory} is damaged ({reason}): '
          'leaving it out'
      )

  def _set_aside(self, steps):
    """Makes room: a step that is there could not be saved again."""
    if self._read_only:
      return
    for step in steps:
      shelf = self.directory.parent / 'damaged_checkpoints'
      shelf.mkdir(exist_ok=True)
      place, count = shelf / str(step), 1
      while place.exists():
        place, count = shelf / f'{step}_{count}', count + 1
      self._folder(step).rename(place)


def superseded(accuracies: Mapping[int, float | None]) -> list[int]:
  """Returns the steps that are no longer needed.

  The best and the two latest validated checkpoints are kept, and the two latest
  mid-epoch ones that are newer than those.

  Args:
    accuracies: On validation data, by step; None for a mid-epoch checkpoint.
      The latest of several with the highest accuracy is the best.
  """
  validated = sorted(s for s, value in accuracies.items() if value is not None)
  mid_epoch = sorted(accuracies.keys() - set(validated))
  newest = validated[-1] if validated else 0
  kept = {*validated[-_LATEST:]}
  kept |= {step for step in mid_epoch[-_LATEST:] if step > newest}
  if validated:
    kept.add(max(validated, key=lambda step: (accuracies[step], step)))
  return sorted(accuracies.keys() - kept)


def write(
    folder: pathlib.Path, tree: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
  """Writes a checkpoint, whole or not at all, by this process alone.

  Args:
    folder: Where to; not there yet.
    tree: Arrays on the host.
    meta: JSON values.
  """
  import orbax.checkpoint as ocp

  meta = {**meta, 'crc32': checksums.by_name(tree)}
  meta['meta_crc32'] = checksums.of_json(meta)
  with files.replaced(folder) as part:
    part.mkdir()
    with _orbax() as writer:
      writer.save(part / _STATE, args=ocp.args.PyTreeSave(tree))
    (part / _META).parent.mkdir()
    (part / _META).write_text(json.dumps(meta))


def read(folder: pathlib.Path, target: Any) -> Restored:
  """Reads a checkpoint, by this process alone, and compares its checksums.

  Args:
    folder: Where it is; its name is the step.
    target: As in `Checkpointer.restore_latest`.

  Raises:
    DamagedError: If it is damaged.
    UserError: If it has no values for the target.
    Exception: Of any kind, if it cannot be read for another reason.
  """
  import orbax.checkpoint as ocp

  meta, item = read_meta(folder), fields(target)
  sums = meta['crc32']
  absent = [name for name in checksums.names(item) if name not in sums]
  if absent and 'step' in sums:  # old runs have checksums of whole fields
    raise UserError(f'the checkpoint {folder} has no {absent[0]}')
  arguments = ocp.args.PyTreeRestore(
      item=item,
      restore_args=ocp.checkpoint_utils.construct_restore_args(item),
      partial_restore=isinstance(target, Mapping),
  )
  try:
    with _orbax() as reader:
      found = reader.restore(folder / _STATE, args=arguments)
  except Exception as error:
    if _is_damage(error):
      raise DamagedError(_reason(error)) from error
    raise
  differing = checksums.differing(sums, found)
  if differing:
    more = f' and {len(differing) - 1} more' if differing[1:] else ''
    raise DamagedError(f'the checksum of {differing[0]}{more} differs')
  if not isinstance(target, Mapping):
    found = dataclasses.replace(target, **found)
  return Restored(tree=found, meta=meta, step=int(folder.name))


def read_meta(folder: pathlib.Path) -> dict[str, Any]:
  """Returns what was saved with a state, and its checksums.

  Raises:
    DamagedError: If the file is missing or damaged.
    OSError: If it cannot be read for another reason.
  """
  try:
    meta = dict(json.loads((folder / _META).read_bytes()))
    found = meta.pop('meta_crc32', None)  # not in old runs
    if found not in (None, checksums.of_json(meta)):
      raise ValueError('its checksum differs')
    if 'accuracy' not in meta:  # an old run has it in a separate file
      metrics = json.loads((folder / 'metrics' / 'metrics').read_bytes())
      meta['accuracy'] = float(metrics['accuracy'])
    return {**meta, 'crc32': dict(meta.get('crc32', {}))}
  except Exception as error:
    if _is_damage(error):
      raise DamagedError(f'{_META}: {_reason(error)}') from error
    raise


def _orbax():
  """Returns Orbax's checkpointer for arrays; it waits for no other process."""
  import orbax.checkpoint as ocp

  alone = ocp.options.MultiprocessingOptions(
      primary_host=jax.process_index(),
      active_processes={jax.process_index()},
      barrier_sync_key_prefix='alone',
  )
  return ocp.Checkpointer(
      ocp.PyTreeCheckpointHandler(multiprocessing_options=alone),
      multiprocessing_options=alone,
  )


def fields(state: Any) -> dict[str, Any]:
  """Returns a state as a dict, without the fields that it does not keep."""
  if not isinstance(state, Mapping):
    names = [field.name for field in dataclasses.fields(state)]
    state = {name: getattr(state, name) for name in names}
  return {name: tree for name, tree in state.items() if tree is not None}


def _as_the_first_process(steps: Iterable[int]) -> Iterator[int]:
  """Yields, in all processes, the steps that the first one goes through."""
  own = iter(steps if processes.is_first() else ())
  while (step := processes.greatest(next(own, -1))) >= 0:
    yield step


def _is_damage(error: Exception) -> bool:
  """Whether an error in reading tells of damage.

  It does not if the system or the memory failed: the files may be intact.
  """
  if isinstance(error, _MISSING):
    return True
  if _SYSTEM.search(str(error)) or 'RESOURCE_EXHAUSTED' in str(error):
    return False
  return isinstance(
      error, ValueError | LookupError | TypeError | RecursionError
  )


def _reason(error: BaseException) -> str:
  """Returns one line; if the system said something, only that."""
  text = getattr(error, 'strerror', None) or str(error).strip()
  if found := _SYSTEM.search(text):
    return os.strerror(int(found.group(1)))
  line = (text or type(error).__name__).splitlines()[0]
  return line if len(line) <= 160 else line[:157] + '...'
