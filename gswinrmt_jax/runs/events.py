"""TensorBoard's event files."""

from collections.abc import Callable, Mapping
import contextlib
import pathlib
import socket
import time
from typing import Any


class Events:
  """An event file, written to as values come.

  Not by tensorboardX's `SummaryWriter`: its thread ends where the disk is full,
  and the run would wait for it for ever. Here that is told, and the run goes on
  without: `metrics.jsonl` has the same values.
  """

  def __init__(
      self, folder: pathlib.Path, *, step: int, warn: Callable[[str], None]
  ):
    """Opens a file of a run that goes on from `step`; later steps are purged.

    Args:
      folder: Where event files are; made if it is not there.
      step: Updates made so far.
      warn: Told, once, that nothing more is written.
    """
    # Imported here: a help text need not wait for it.
    from tensorboardX import record_writer
    from tensorboardX.proto import event_pb2

    self._proto, self._warn, self._writer = event_pb2, warn, None
    name = f'events.out.tfevents.{time.time():.0f}.{socket.gethostname()}'
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    with self._sparing():
      folder.mkdir(exist_ok=True)
      self._writer = record_writer.RecordWriter(str(folder / name))
      self._add(0, file_version='brain.Event:2')
      self._add(step + 1, session_log=start)

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds scalars, called `KIND/NAME`."""
    from tensorboardX.proto import summary_pb2

    scalars = [
        summary_pb2.Summary.Value(tag=f'{kind}/{name}', simple_value=value)
        for name, value in values.items()
    ]
    if self._writer is not None:
      with self._sparing():
        self._add(step, summary=summary_pb2.Summary(value=scalars))

  def close(self) -> None:
    """Closes the file."""
    if self._writer is not None:
      with self._sparing():
        self._writer.close()

  def _add(self, step, **what):
    event = self._proto.Event(wall_time=time.time(), step=step, **what)
    self._writer.write(event.SerializeToString())
    self._writer.flush()

  @contextlib.contextmanager
  def _sparing(self):
    try:
      yield
    except OSError as error:
      writer, self._writer = self._writer, None
      if writer is not None:
        with contextlib.suppress(OSError):  # It tries to write once more.
          writer.close()
      self._warn(
          f'no more TensorBoard events are written ({error.strerror}); '
          'metrics.jsonl has the same values'
      )
