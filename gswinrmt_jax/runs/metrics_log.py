"""The metrics of a run: `metrics.jsonl`, and TensorBoard's event files."""

from collections.abc import Callable, Mapping
import contextlib
import json
import os
import pathlib
import socket
import time
from typing import Any

from gswinrmt_jax import files
from gswinrmt_jax.errors import RunError
from gswinrmt_jax.terminal import duration, Terminal

# The last two for callers that have not moved yet.
__all__ = ['MetricsLog', 'SilentLog', 'Terminal', 'duration', 'read_metrics']


class MetricsLog:
  """`metrics.jsonl`, one object a line, and the same values for TensorBoard.

  Attributes:
    entries: All entries so far, those of earlier starts too.
  """

  def __init__(
      self, folder: pathlib.Path, *, step: int, terminal: Terminal | None = None
  ):
    """Opens the log of a run that resumes at `step`.

    Later entries, of a start that was cut off, are taken out, so that nothing
    counts twice.
    """
    self._path = folder / 'metrics.jsonl'
    self.entries = _read_until(folder, step)
    lines = [json.dumps(entry) + '\n' for entry in self.entries]
    files.write_text(self._path, ''.join(lines))
    # Without a buffer: what could not be written is not tried again on closing.
    self._file = self._path.open('ab', buffering=0)
    self._events = _Events(
        folder / 'tensorboard', step=step, warn=(terminal or Terminal()).say
    )

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds an entry.

    Args:
      kind: 'train' (an interval of steps) or 'epoch'.
      step: Updates made so far.
      values: Numbers by name.

    Raises:
      RunError: If it cannot be written, or the file was removed.
    """
    entry = {'kind': kind, 'step': step, **values}
    self.entries.append(entry)
    try:
      self._append(f'{json.dumps(entry)}\n'.encode())
    except OSError as error:
      raise RunError(
          f'cannot write {self._path} ({error.strerror or error}): the run '
          'ends; the same command resumes from the last checkpoint'
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
  """The entries of a `MetricsLog`, for a process that writes none."""

  def __init__(self, folder: pathlib.Path, *, step: int):
    """Reads the entries up to `step`."""
    self.entries = _read_until(folder, step)

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds an entry, like `MetricsLog.write`."""
    self.entries.append({'kind': kind, 'step': step, **values})

  def close(self) -> None:
    """Does nothing."""


class _Events:
  """A TensorBoard event file, written to synchronously.

  Not tensorboardX's `SummaryWriter`: its thread ends when the disk is full, and
  the run would wait for it for ever. Here the run goes on without events.
  """

  def __init__(
      self, folder: pathlib.Path, *, step: int, warn: Callable[[str], None]
  ):
    """Opens a file; events after `step`, in earlier files, become void."""
    # Imported here: a help text need not wait for it.
    from tensorboardX import record_writer
    from tensorboardX.proto import event_pb2, summary_pb2

    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    self._warn, self._writer = warn, None
    name = f'events.out.tfevents.{time.time():.0f}.{socket.gethostname()}'
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    with self._sparing():
      folder.mkdir(exist_ok=True)
      # Not its `EventsWriter`, which cannot be closed when the disk is full.
      self._writer = record_writer.RecordWriter(str(folder / name))
      self._add(0, file_version='brain.Event:2')
      self._add(step + 1, session_log=start)

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds scalars, called `KIND/NAME`."""
    scalars = [
        self._summary.Value(tag=f'{kind}/{name}', simple_value=value)
        for name, value in values.items()
    ]
    with self._sparing():
      self._add(step, summary=self._summary(value=scalars))

  def close(self) -> None:
    """Closes the file."""
    if self._writer is not None:
      with self._sparing():
        self._writer.close()

  def _add(self, step, **fields):
    if self._writer is not None:
      event = self._event(wall_time=time.time(), step=step, **fields)
      self._writer.write(event.SerializeToString())
      self._writer.flush()

  @contextlib.contextmanager
  def _sparing(self):
    try:
      yield
    except OSError as error:
      writer, self._writer = self._writer, None
      with contextlib.suppress(OSError, AttributeError):
        writer.close()  # It tries to write once more.
      self._warn(
          f'no more TensorBoard events are written ({error.strerror}); '
          'metrics.jsonl has the same values'
      )


def read_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the entries of `metrics.jsonl`, without lines that are none.

  A process that is killed may leave half a line, a person any line.
  """
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


def _read_until(folder, step):
  return [entry for entry in read_metrics(folder) if entry['step'] <= step]


def _is_entry(entry):
  kind, step = entry.get('kind'), entry.get('step')
  if kind == 'epoch' and not isinstance(entry.get('epoch'), int):
    return False
  return isinstance(kind, str) and isinstance(step, int)
