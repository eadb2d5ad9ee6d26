"""Checkpoints of a run, saved asynchronously and verified when restored.

    STEP/state           the arrays of the train state, by Orbax
    STEP/meta/metadata   JSON: config, step, epoch, validation accuracy, which
                         weights have it, CRC-32 of each array and of this file

A checkpoint is written whole or not at all. The latest are kept to resume from,
and the one with the best validation accuracy. With several processes, process 0
writes, and decides which checkpoint all of them restore.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import functools
import json
import logging
import os
import pathlib
import re
import sys
import threading
from typing import Any

import jax
import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import checksums, preservation
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import RunError, UserError

_STATE, _META = 'state', 'meta/metadata'
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# TensorStore raises `ValueError` for every failure. If the operating system
# refused to read, the message quotes its error number.
_SYSTEM = re.compile(r"(?:os_error_code='|OS error )(\d+)")


class DamagedError(Exception):
  """A file of a checkpoint is missing, or its content is not what was saved."""


@dataclasses.dataclass(frozen=True)
class Restored:
  """A restored checkpoint: `tree` as in the target, `meta` as saved."""

  tree: Any
  meta: dict[str, Any]
  step: int


class Checkpointer:
  """Saves and restores the checkpoints of one run folder.

  It replaces `orbax.checkpoint.CheckpointManager`, which has no checksums, does
  not sync checkpoints to disk before it renames them and, by default, deletes
  an old one file by file in place, so that a kill leaves half of it.
  """

  def __init__(
      self,
      directory: pathlib.Path,
      *,
      read_only: bool = False,
      shared: bool = False,
      warn: Callable[[str], None] = print,
  ):
    """Takes the directory.

    Args:
      directory: Has a folder for each step; the first save creates it.
      read_only: Whether damaged checkpoints stay where they are.
      shared: Whether another process may be writing there, for lack of a lock:
        what seems to be left over stays.
      warn: Called with a line for each damaged checkpoint that is skipped.
    """
    self.directory = directory.absolute()  # Orbax requires it.
    self._read_only, self._shared = read_only, shared
    self._warn = warn
    self._writing = None
    self._failure = None
    self._warned = False  # of a checkpoint that cannot be removed

  def save(
      self, state: Any, *, accuracy: float | None, meta: Mapping[str, Any]
  ) -> None:
    """Copies a state to the host and writes it asynchronously, under its step.

    Every process has to call this. It waits for the previous save, and returns
    when the arrays may be donated.

    Args:
      state: A dataclass or mapping of array trees, including `step`; each
        process has all of it. Fields that are None are left out.
      accuracy: Validation accuracy, or the score that decides instead: mean IoU
        or AP. Says which checkpoint is the best. None for a mid-epoch
        checkpoint, which is removed once an epoch's checkpoint is complete.
      meta: JSON values to store with the state.

    Raises:
      RunError: If the previous save failed.
    """
    self.wait()
    if not processes.is_first():
      return
    values = jax.device_get(_fields(state))
    if jax.default_backend() == 'cpu':
      # The arrays may share buffers with the state, which is donated next.
      values = jax.tree.map(np.array, values)
    self._writing = threading.Thread(
        target=self._write,
        args=(values, {**meta, 'accuracy': accuracy}),
        daemon=True,  # A second Ctrl-C ends the process even during a write.
    )
    self._writing.start()

  def wait(self) -> None:
    """Waits until the save is on disk; every process has to call this.

    Raises:
      RunError: If the save failed.
    """
    self._join()
    self.check()

  def check(self) -> None:
    """Raises the error of a failed save; every process has to call this."""
    with processes.fail_together():
      self._check()

  def close(self) -> None:
    """Waits until the save of this process, if any, is on disk.

    Raises:
      RunError: If it failed.
    """
    self._join()
    self._check()

  def abandon(self) -> None:
    """Stops waiting for a running save, which may end with the process."""
    self._writing = self._failure = None

  def clean(self) -> None:
    """Removes incomplete and superseded checkpoints left by a killed run.

    What cannot be removed stays, with a warning.
    """
    accuracies, damaged = self._accuracies()
    self._remove({} if damaged else accuracies)

  def steps(self) -> list[int]:
    """Returns the steps that have a checkpoint on disk, in order."""
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
        continue  # `restore_latest` reports it.
    return None

  def restore_latest(self, target: Any) -> Restored | None:
    """Restores the newest checkpoint; every process has to call this.

    Damaged checkpoints are reported, skipped and, unless read-only, moved to
    `damaged_checkpoints` next to the directory.

    Args:
      target: Shapes, dtypes and shardings of a whole state, or of a dict with
        some of its fields, such as `{'params', 'batch_stats', 'ema'}`.

    Returns:
      The checkpoint; None if there is none.

    Raises:
      UserError: If all are damaged, or one cannot be read for another reason.
    """
    return self._restore_first(lambda found: sorted(found)[::-1], target)

  def restore_best(self, target: Any) -> Restored | None:
    """Restores the best checkpoint; otherwise like `restore_latest`.

    It has the highest validation accuracy, and is the latest of equals.
    Mid-epoch ones, which have none, come last.
    """
    return self._restore_first(preservation.best_first, target)

  def restore(self, step: int, target: Any) -> Restored:
    """Restores the checkpoint of one step; `target` as in `restore_latest`.

    Raises:
      UserError: If it does not exist or cannot be read.
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
    raise RunError(
        f'cannot save a checkpoint in {self.directory} ({_reason(failure)}): '
        'fix that; the same command then resumes from the last one, if there '
        'is one'
    ) from failure

  def _write(self, tree, meta):
    """Writes a checkpoint and removes those it supersedes; runs in a thread."""
    try:
      # Without parents: a run folder that was deleted is not created again.
      self.directory.mkdir(exist_ok=True)
      accuracies, damaged = self._accuracies()
      self._tell(damaged)
      self._set_aside(damaged)
      step = int(tree['step'])
      write(self._folder(step), tree, meta)
      self._remove({**accuracies, step: meta['accuracy']})
    except Exception as error:  # Orbax and TensorStore raise all kinds.
      self._failure = error

  def _remove(self, accuracies):
    """Removes leftovers and superseded checkpoints, with at most one warning.

    A file may be held open on NFS, or belong to somebody else. The checkpoint
    that was just saved is good nevertheless; the next save tries again.
    """
    failed = [] if self._shared else files.remove_leftovers(self.directory)
    for step in preservation.superseded(accuracies):
      try:
        files.remove(self._folder(step))
      except OSError as error:
        failed.append(error)
    if failed and not self._warned:
      self._warned = True
      self._warn(
          f'an old checkpoint in {self.directory} cannot be removed '
          f'({failed[0].strerror or failed[0]}): it takes up space; the run '
          'goes on and tries again after each save'
      )

  def _accuracies(self):
    """Returns accuracies by step, and errors by step where meta is damaged."""
    accuracies, damaged = {}, {}
    for step in self.steps():
      try:
        accuracies[step] = read_meta(self._folder(step))['accuracy']
      except DamagedError as error:
        if self._is_gone(step):
          return self._accuracies()
        damaged[step] = error
    return accuracies, damaged

  def _is_gone(self, step):
    """Returns whether a run that is training removed what was to be read."""
    reader = self._read_only and jax.process_count() == 1
    return reader and not self._folder(step).exists()

  def _restore_first(self, order, target):
    """Restores the first checkpoint that is not damaged.

    Args:
      order: Returns the steps to try, given the accuracy of each.
      target: As in `restore_latest`.
    """
    with processes.fail_together():
      accuracies, damaged = self._accuracies()
    self._tell(damaged)
    for step in _as_the_first_process(order(accuracies)):
      try:
        restored = self._restore(step, target)
      except DamagedError as error:
        if self._is_gone(step):
          return self._restore_first(order, target)
        self._tell({step: error})
        damaged[step] = error
      else:
        # Only after a success: if none can be read, the cause may be another.
        self._set_aside(damaged)
        return restored
    if damaged:
      raise UserError(
          f'none of the checkpoints {sorted(damaged)} of '
          f'{self.directory.parent} can be read: train into another --workdir'
      )
    return None

  def _restore(self, step, target):
    """Restores a checkpoint in all processes or in none.

    Raises:
      DamagedError: If process 0 found it damaged.
      UserError: If a process cannot read it for another reason.
    """
    restored = failure = None
    try:
      restored = read(self._folder(step), target)
    except BaseException as error:
      failure = error
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
          'skipping it'
      )

  def _set_aside(self, steps):
    """Moves checkpoints away, so that their steps can be saved again."""
    if self._read_only:
      return
    # If the directory is a link to another disk, it is moved on that disk.
    shelf = self.directory.resolve().parent / 'damaged_checkpoints'
    for step in steps:
      shelf.mkdir(exist_ok=True)
      place, count = shelf / str(step), 1
      while place.exists():
        place, count = shelf / f'{step}_{count}', count + 1
      self._folder(step).rename(place)


def write(
    folder: pathlib.Path, tree: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
  """Writes arrays on the host and JSON values to a new folder.

  Either all of it is written or nothing. Other processes take no part.
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
  """Reads a checkpoint and verifies its checksums, in this process alone.

  Args:
    folder: The checkpoint's folder, whose name is the step.
    target: As in `Checkpointer.restore_latest`.

  Raises:
    DamagedError: If the checkpoint is damaged.
    UserError: If it lacks an array of the target, or has another optimizer's.
    Exception: Of any kind, if it cannot be read for another reason.
  """
  import orbax.checkpoint as ocp

  meta, item = read_meta(folder), _fields(target)
  sums = meta['crc32']
  _check_names(folder, sums, item)
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
  if changed := checksums.differing(sums, found):
    more = f' and {len(changed) - 1} more' if changed[1:] else ''
    raise DamagedError(f'the checksum of {changed[0]}{more} differs')
  if not isinstance(target, Mapping):
    found = dataclasses.replace(target, **found)
  return Restored(tree=found, meta=meta, step=int(folder.name))


def _check_names(folder, saved, item):
  """Refuses a checkpoint whose arrays are not those of the target."""
  if 'step' not in saved:  # early checkpoints have those of whole fields
    return
  names = checksums.names(item)
  absent = [name for name in names if name not in saved]
  if 'opt_state' in item:
    absent += [
        name
        for name in saved
        if name.startswith('opt_state/') and name not in names
    ]
  if not absent:
    return
  if absent[0].startswith('opt_state/'):
    raise UserError(
        f'the optimizer state of {folder} has other arrays than the installed '
        f'version of Optax makes ({absent[0]} is in one of them only): install '
        'the versions that environment.json of the run names, or start another '
        f'--workdir with --config.init_from={folder.parent.parent}'
    )
  raise UserError(f'the checkpoint {folder} has no {absent[0]}')


def read_meta(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the metadata saved with a state, including its checksums.

  Raises:
    DamagedError: If the file is missing or damaged.
    OSError: If it cannot be read for another reason.
  """
  try:
    meta = dict(json.loads((folder / _META).read_bytes()))
    found = meta.pop('meta_crc32', None)  # not in early checkpoints
    if found not in (None, checksums.of_json(meta)):
      raise ValueError('its checksum differs')
    if 'accuracy' not in meta:  # early checkpoints have it in a file
      metrics = json.loads((folder / 'metrics' / 'metrics').read_bytes())
      meta['accuracy'] = float(metrics['accuracy'])
    return {**meta, 'crc32': dict(meta.get('crc32', {}))}
  except Exception as error:
    if _is_damage(error):
      raise DamagedError(f'{_META}: {_reason(error)}') from error
    raise


def _orbax():
  """Returns an Orbax checkpointer that does not wait for other processes."""
  import orbax.checkpoint as ocp

  _ignore_late_failures()
  alone = ocp.options.MultiprocessingOptions(
      primary_host=jax.process_index(),
      active_processes={jax.process_index()},
      barrier_sync_key_prefix='alone',
  )
  return ocp.Checkpointer(
      ocp.PyTreeCheckpointHandler(multiprocessing_options=alone),
      multiprocessing_options=alone,
  )


@functools.cache
def _ignore_late_failures():
  """Keeps TensorStore and asyncio from printing what Orbax has raised already.

  If one file cannot be written or read, Orbax raises that error and closes its
  event loop. The operations on the other files end earlier or later. Each would
  print its own error, since nobody asked for it, or that the loop is closed.
  """
  report = sys.unraisablehook

  def hook(unraisable):
    if str(unraisable.exc_value) != 'Event loop is closed':
      report(unraisable)

  def not_of_tensorstore(record):
    return not (record.exc_info and 'OCDBT' in str(record.exc_info[1]))

  sys.unraisablehook = hook
  logging.getLogger('asyncio').addFilter(not_of_tensorstore)


def _fields(state: Any) -> dict[str, Any]:
  """Returns a state as a dict, without the fields that are None."""
  trees = state if isinstance(state, Mapping) else vars(state)
  return {name: tree for name, tree in trees.items() if tree is not None}


def _as_the_first_process(steps: Iterable[int]) -> Iterator[int]:
  """Yields, in all processes, the steps that process 0 goes through."""
  own = iter(steps if processes.is_first() else ())
  while (step := processes.greatest(next(own, -1))) >= 0:
    yield step


def _is_damage(error: Exception) -> bool:
  """Returns whether a read error means that the checkpoint is damaged.

  If the operating system failed or memory ran out, the files may be intact.
  """
  if isinstance(error, _MISSING):
    return True
  if _SYSTEM.search(str(error)) or 'RESOURCE_EXHAUSTED' in str(error):
    return False
  return isinstance(
      error, ValueError | LookupError | TypeError | RecursionError
  )


def _reason(error: BaseException) -> str:
  """Returns an error in one line, as worded by the system if it caused it."""
  text = getattr(error, 'strerror', None) or str(error).strip()
  if found := _SYSTEM.search(text):
    return os.strerror(int(found.group(1)))
  line = (text or type(error).__name__).splitlines()[0]
  return line if len(line) <= 160 else line[:157] + '...'
