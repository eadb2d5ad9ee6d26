"""Runs an experiment, one run after another."""

from collections.abc import Callable, Sequence
import contextlib
import signal
import subprocess
import sys

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import status
from gswinrmt_jax.experiments.sets import Job
from gswinrmt_jax.runs import run_lock

_PATIENCE = 60  # seconds for a run that is stopped to end by itself


def run(
    jobs: Sequence[Job],
    program: Sequence[str],
    say: Callable[[str], None] = print,
) -> list[Job]:
  """Runs what is not complete; a failing run does not stop the others.

  Each run is a process of its own: whatever it leaves behind, compiled
  programs or the memory of a device, goes with it, and one that is killed for
  its memory takes no other along. This process must not touch a device: the
  memory that JAX takes there would be missing for the runs.

  Args:
    jobs: The runs, in order.
    program: What trains, given a job's arguments.
    say: Where lines for the user go.

  Returns:
    Those that failed.
  """
  failed = []
  for number, job in enumerate(jobs, 1):
    title = f'[{number}/{len(jobs)}] {job.folder}'
    # Beside the folder: the lock inside is that of the run itself.
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = job.folder.parent / f'.{job.folder.name}.lock'
    with run_lock.claimed(lock) as holder:
      if holder:
        say(f'{title}: {holder} is at it, passed over')
        continue
      try:
        before = status.read(job)
      except (UserError, OSError, ValueError, KeyError) as error:
        say(f'{title}: failed, its folder cannot be read: {error}')
        failed.append(job)
        continue
      if before.complete:
        say(f'{title}: complete, passed over')
        continue
      say(f'{title}: {before.state}')
      code = _wait(subprocess.Popen([*program, *job.arguments]))
      if code:
        say(f'{title}: failed with status {code}')
        failed.append(job)
  return failed


def _wait(process: subprocess.Popen) -> int:
  """Returns the status of a run; if we are stopped, it is stopped first."""
  before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  try:
    return process.wait()
  except KeyboardInterrupt:
    # A terminal has told the run, too: it ends by itself.
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_PATIENCE)
    raise
  finally:
    signal.signal(signal.SIGTERM, before)
    if process.poll() is None:
      process.terminate()
      process.wait()
