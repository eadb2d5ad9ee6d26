"""What a run tells: a progress line, metrics.jsonl, TensorBoard events."""

from collections.abc import Mapping
import json
import os
import pathlib
from typing import Any

from gswinrmt_jax import files
from gswinrmt_jax.errors import RunError
from gswinrmt_jax.runs import events
from gswinrmt_jax.terminal import duration, Terminal

__all__ = ['MetricsLog', 'SilentLog', 'Terminal', 'duration', 'read_metrics']


class MetricsLog:
  """`metrics.jsonl`, one object a line, and TensorBoard's event files."""

  def __init__(
      self, folder: pathlib.Path, *, step: int, terminal: Terminal | None = None
  ):
    """Opens the log of a run that goes on from `step`.

    Entries past `step`, left by a run that was cut off, are taken out, so that
    nothing counts twice.
    """
    self._path = folder / 'metrics.jsonl'
    kept = [entry for entry in read_metrics(folder) if entry['step'] <= step]
    with files.replacing(self._path) as part:
      part.write_text(''.join(json.dumps(entry) + '\n' for entry in kept))
    self.entries = kept
    # Without a buffer: what could not be written is not tried again on closing.
    self._file = self._path.open('ab', buffering=0)
    self._events = events.Events(
        folder / 'tensorboard', step=step, warn=(terminal or Terminal()).say
    )

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds an entry.

    Args:
      kind: 'train' (an interval of steps) or 'epoch'.
      step: Updates made so far.
      values: Numbers by name.

    Raises:
      RunError: If it cannot be written, or the file is gone.
    """
    entry = {'kind': kind, 'step': step, **values}
    self.entries.append(entry)
    try:
      self._append(f'{json.dumps(entry)}\n'.encode())
    except OSError as error:
      raise RunError(
          f'cannot write {self._path} ({error.strerror or error}): the run '
          'ends; the same command goes on from the last checkpoint'
      ) from error
    self._events.write(kind, step, values)

  def close(self) -> None:
    """Closes the files."""
    self._file.close()
    self._events.close()

  def _append(self, line):
    if not os.fstat(self._file.fileno()).st_nlink:
      raise FileNotFoundError('it was removed')
    while line:  # On a disk that is nearly full a part may fit.
      line = line[self._file.write(line) :]


class SilentLog:
  """The entries alone: of a process that leaves the writing to another."""

  def __init__(self, folder: pathlib.Path, *, step: int):
    """Reads what there is up to `step`."""
    self.entries = [
        entry for entry in read_metrics(folder) if entry['step'] <= step
    ]

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds an entry, as `MetricsLog.write` does."""
    self.entries.append({'kind': kind, 'step': step, **values})

  def close(self) -> None:
    """Does nothing."""


def read_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the entries of `metrics.jsonl` but for those half written."""
  path = folder / 'metrics.jsonl'
  entries = []
  for line in path.read_bytes().splitlines() if path.exists() else ():
    try:
      entry = json.loads(line)
    except (ValueError, RecursionError):
      continue
    if isinstance(entry, dict) and _is_entry(entry):
      entries.append(entry)
  return entries


def _is_entry(entry):
  """Whether it says what it is of; somebody may have edited the file."""
  kind, step = entry.get('kind'), entry.get('step')
  if kind == 'epoch' and not isinstance(entry.get('epoch'), int):
    return False
  return isinstance(kind, str) and isinstance(step, int)
