"""Writers of a run's metrics: `metrics.jsonl` and TensorBoard event files."""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import json
import pathlib
import socket
import time
from typing import Any

from gswinrmt_jax import files
from gswinrmt_jax.errors import RunError


class JsonLines:
  """Writes `metrics.jsonl`, one JSON object per line."""

  def __init__(
      self, folder: pathlib.Path, entries: Iterable[Mapping[str, Any]]
  ):
    """Replaces the file by one with these entries, and opens it."""
    self._path = folder / 'metrics.jsonl'
    lines = [json.dumps(entry) + '\n' for entry in entries]
    files.write_text(self._path, ''.join(lines))
    # Unbuffered, so that a failed write is not tried again later.
    self._file = self._path.open('ab', buffering=0)

  def write(self, entry: Mapping[str, Any]) -> None:
    """Adds an entry.

    Raises:
      RunError: If it cannot be written, or the file was removed or replaced,
        as in a folder that was moved and whose place another run has taken.
    """
    line = f'{json.dumps(entry)}\n'.encode()
    try:
      if not files.is_at(self._file, self._path):
        raise FileNotFoundError('it was removed or moved')
      while line:  # A nearly full disk may take only a part.
        line = line[self._file.write(line) :]
    except OSError as error:
      raise RunError(
          f'cannot write {self._path} ({error.strerror or error}): the run '
          'ends; the same command resumes from the last checkpoint'
      ) from error

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class TensorBoard:
  """Writes an event file synchronously.

  It replaces tensorboardX's `SummaryWriter`, whose thread ends when the disk is
  full, so that the run waits forever. Here the run continues without events.
  """

  def __init__(
      self, folder: pathlib.Path, *, step: int, warn: Callable[[str], None]
  ):
    """Opens a new file; voids events after `step` in earlier files."""
    # Imported here, so that --help does not wait for it.
    from tensorboardX import record_writer
    from tensorboardX.proto import event_pb2, summary_pb2

    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    self._warn, self._writer = warn, None
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    # A second may see several starts.
    name = f'events.out.tfevents.{time.time():.6f}.{socket.gethostname()}'
    with self._warn_once():
      folder.mkdir(exist_ok=True)
      # Not its `EventsWriter`, which cannot be closed when the disk is full.
      self._writer = record_writer.RecordWriter(str(folder / name))
      self._add(0, file_version='brain.Event:2')
      self._add(step + 1, session_log=start)

  def write(self, entry: Mapping[str, Any]) -> None:
    """Adds an entry's values as scalars named `KIND/NAME`."""
    scalars = [
        self._summary.Value(tag=f'{entry["kind"]}/{name}', simple_value=value)
        for name, value in entry.items()
        if name not in ('kind', 'step')
    ]
    with self._warn_once():
      self._add(entry['step'], summary=self._summary(value=scalars))

  def close(self) -> None:
    """Closes the file."""
    if self._writer is not None:
      with self._warn_once():
        self._writer.close()

  def _add(self, step, **fields):
    if self._writer is not None:
      event = self._event(wall_time=time.time(), step=step, **fields)
      self._writer.write(event.SerializeToString())
      self._writer.flush()

  @contextlib.contextmanager
  def _warn_once(self):
    """Warns of a failure and writes no more events after it."""
    try:
      yield
    except OSError as error:
      writer, self._writer = self._writer, None
      with contextlib.suppress(OSError, AttributeError):
        writer.close()  # This tries to write once more.
      self._warn(
          f'no more TensorBoard events are written ({error.strerror}); '
          'metrics.jsonl has the same values'
      )
