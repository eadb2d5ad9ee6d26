"""Runs an experiment, one run after another, and says how far each is."""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
import signal
import subprocess
import sys

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments.sets import Job
from gswinrmt_jax.runs import metrics_log, run_folder
from gswinrmt_jax.runs import summary as summary_lib

_COMPLETE = 'complete'
_PATIENCE = 60  # seconds for an interrupted run to end by itself


def run(
    jobs: Sequence[Job],
    program: Sequence[str],
    say: Callable[[str], None] = print,
) -> list[Job]:
  """Runs what is not complete; a failing run does not stop the others.

  Each run is a process of its own, so that its memory and that of the device
  are free for the next, and a run that is killed takes no other along. This
  process must not touch a device: JAX would take memory there.

  Args:
    jobs: The runs, in order.
    program: The training command, without a job's arguments.
    say: Receives lines for the user.

  Returns:
    The jobs that failed.
  """
  failed = []
  for number, job in enumerate(jobs, 1):
    title = f'[{number}/{len(jobs)}] {job.folder}'
    # Beside the folder, since the run itself holds the lock inside.
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = job.folder.parent / f'.{job.folder.name}.lock'
    try:
      with files.locked(lock):
        if not _run_one(job, title, program, say):
          failed.append(job)
    except files.LockedError as holder:
      say(f'{title}: {holder} is at it, passed over')
  return failed


def _run_one(job, title, program, say):
  """Runs a job unless it is complete; returns whether that went well."""
  try:
    before = status(job)
  except (UserError, OSError, ValueError, KeyError) as error:
    say(f'{title}: failed, its folder cannot be read: {error}')
    return False
  if before.complete:
    say(f'{title}: complete, passed over')
    return True
  say(f'{title}: {before.state}')
  code = _wait(subprocess.Popen([*program, *job.arguments]))
  if code:
    say(f'{title}: failed with status {code}')
  return not code


def _wait(process: subprocess.Popen) -> int:
  """Returns the exit status; if this process is stopped, stops the run."""
  before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  try:
    return process.wait()
  except KeyboardInterrupt:
    # The terminal interrupts the run, too, so it ends by itself.
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_PATIENCE)
    raise
  finally:
    signal.signal(signal.SIGTERM, before)
    if process.poll() is None:
      process.terminate()
      process.wait()


@dataclasses.dataclass(frozen=True)
class Status:
  """How far a run is.

  Attributes:
    epoch: The last one that was validated, or 0.
    epochs: Where the run is to end.
    complete: Whether it ended there and has a summary.
    differs: In which fields the folder belongs to another recipe, or ''.
    val_accuracy: After the last epoch, or None.
    test_accuracy: Of the last checkpoint, or None if not tested.
  """

  epoch: int
  epochs: int
  complete: bool = False
  differs: str = ''
  val_accuracy: float | None = None
  test_accuracy: float | None = None

  @property
  def state(self) -> str:
    """In words."""
    if self.differs:
      return f'of another config: {self.differs}'
    if self.complete:
      return _COMPLETE
    return f'epoch {self.epoch} of {self.epochs}' if self.epoch else 'not begun'


def status(job: Job) -> Status:
  """Returns how far a run is, by its folder.

  Raises:
    UserError: If the folder cannot be read.
  """
  config, folder = job.config, job.folder
  epochs = config.stop_after_epochs or config.num_epochs
  if not (folder / 'config.json').exists():
    return Status(0, epochs)
  differing = run_folder.differences(run_folder.load_config(folder), config)
  if differing:
    return Status(0, epochs, differs='; '.join(differing))
  entries = [
      entry
      for entry in metrics_log.read_metrics(folder)
      if entry['kind'] == 'epoch'
  ]
  if not entries:
    return Status(0, epochs)
  last = entries[-1]
  summary = summary_lib.load(folder)
  current = summary is not None and summary['steps'] == last['step']
  return Status(
      last['epoch'],
      epochs,
      complete=current and last['epoch'] >= epochs,
      val_accuracy=last.get('val_accuracy'),
      test_accuracy=summary['last'].get('test_accuracy') if current else None,
  )


def status_table(jobs: Iterable[Job]) -> str:
  """Returns a line for each run, and how many are complete."""
  found = [(job.folder.name, *_cells(job)) for job in jobs]
  width = max((len(name) for name, *_ in found), default=0)
  lines = [f'{"":<{width}}  {"validation":>10}{"test":>9}']
  for name, figures, state in found:
    lines.append(f'{name:<{width}}  {figures[0]:>10}{figures[1]:>9}  {state}')
  done = sum(state == _COMPLETE for *_, state in found)
  return '\n'.join([*lines, f'{done} of {len(found)} runs are complete.'])


def _cells(job):
  """Returns the figures of a run and its state, or why it cannot be read."""
  try:
    found = status(job)
  except UserError as error:
    return ('-', '-'), str(error)
  figures = (found.val_accuracy, found.test_accuracy)
  return ['-' if one is None else f'{one:.2%}' for one in figures], found.state
