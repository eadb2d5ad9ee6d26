"""Runs the jobs of an experiment one after another and reports progress."""

from collections.abc import Callable, Sequence
import contextlib
import signal
import subprocess
import sys
from typing import NamedTuple

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import results
from gswinrmt_jax.experiments.sets import Job
from gswinrmt_jax.runs import run_folder

_COMPLETE = 'complete'
_PATIENCE = 60  # seconds for an interrupted run to end by itself


def run(
    jobs: Sequence[Job],
    program: Sequence[str],
    say: Callable[[str], None] = print,
) -> list[Job]:
  """Runs the jobs that are not complete; failures do not stop the others.

  Each run is a separate process: its host and device memory is free for the
  next run, and killing it does not affect the others. This process must not
  touch a device, since JAX would allocate memory there.

  `program` is the training command without a job's arguments. Returns the jobs
  that failed.
  """
  failed = []
  for number, job in enumerate(jobs, 1):
    title = f'[{number}/{len(jobs)}] {job.folder}'
    # Next to the folder, since the run itself holds the lock inside.
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = job.folder.parent / f'.{job.folder.name}.lock'
    try:
      with files.locked(lock):
        if not _run_one(job, title, program, say):
          failed.append(job)
    except files.LockedError as holder:
      say(f'{title}: {holder} is training it, skipped')
  return failed


def _run_one(job, title, program, say):
  """Runs a job unless it is complete; returns whether it succeeded."""
  try:
    before = status(job)
  except UserError as error:  # does not end the other runs
    say(f'{title}: failed: {error}')
    return False
  if before.complete:
    say(f'{title}: complete, skipped')
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
    # The terminal also interrupts the run, which then ends by itself.
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_PATIENCE)
    raise
  finally:
    signal.signal(signal.SIGTERM, before)
    if process.poll() is None:
      process.terminate()
      process.wait()


class Status(NamedTuple):
  """Progress of a run.

  Attributes:
    state: Progress in words.
    val_score: Validation score after the last epoch, or None.
    test_score: Test score of the last checkpoint, None if not tested.
  """

  state: str
  val_score: float | None = None
  test_score: float | None = None

  @property
  def complete(self) -> bool:
    """Whether the run reached its last epoch and has a summary."""
    return self.state == _COMPLETE


def status(job: Job) -> Status:
  """Returns the progress of a run, as found in its folder.

  Raises:
    UserError: If the folder cannot be read.
  """
  if not (job.folder / 'config.json').exists():
    return Status('not begun')
  found = results.read(job.folder)
  differing = run_folder.differences(found.config, job.config)
  if differing:
    return Status(f'of another config: {"; ".join(differing)}')
  if not found.epochs:
    return Status('not begun')
  state, stop = found.progress, job.config.stop_after_epochs
  if stop:
    state = f'epoch {found.epoch} of {stop}'
  if found.finished or (stop and found.summary and found.epoch >= stop):
    state = _COMPLETE
  return Status(state, found.curve[found.epoch], found.test_score)


def status_table(jobs: Sequence[Job]) -> str:
  """Returns a line for each run, and how many are complete."""
  width = max(len(job.folder.name) for job in jobs)
  lines, done = [f'{"":<{width}}  {"validation":>10}{"test":>9}'], 0
  for job in jobs:
    try:
      found = status(job)
    except UserError as error:
      found = Status(str(error))
    val, test = ('-' if one is None else f'{one:.2%}' for one in found[1:])
    name = f'{job.folder.name:<{width}}'
    lines.append(f'{name}  {val:>10}{test:>9}  {found.state}')
    done += found.complete
  return '\n'.join([*lines, f'{done} of {len(jobs)} runs are complete.'])
