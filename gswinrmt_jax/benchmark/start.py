"""Measures the time from the start of training until its first logged step."""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import gswinrmt_jax
from gswinrmt_jax.benchmark import record, worker

# Where new processes find the package.
_ROOT = pathlib.Path(gswinrmt_jax.__file__).parent.parent
_TRAIN = ('-m', 'gswinrmt_jax.commands.main', 'train')
_RUN = 'digits_retention:smoke'  # with next to no augmentation
# Compile effort of that recipe and of full recipes; they differ only on a CPU.
_STEPS = {
    'first training step': 'quick',
    'first training step, compiled in full': 'full',
}
_POLL = 0.02  # seconds
_LIMIT = 600.0  # seconds


def measure(repeats: int, threads: int | None) -> list[dict[str, Any]]:
  """Times training from the start of a process until step 1 is logged.

  Each of the `repeats` rounds times every compile effort. `threads` restricts
  the cores of the training, and of this process from now on.

  Raises:
    worker.WorkerError: If a process fails.
  """
  if cores := worker.choose_cores(threads):
    os.sched_setaffinity(0, cores)
  taken = {name: [] for name in _STEPS}
  for _ in range(repeats):
    for name, effort in _STEPS.items():
      taken[name].append(_first_step_seconds(effort))
  return [
      {'what': name, 'seconds': statistics.median(seconds), 'repeats': seconds}
      for name, seconds in taken.items()
  ]


def table(found: list[dict[str, Any]]) -> str:
  """Returns the rows as a Markdown table."""
  cells = []
  for row in found:
    seconds = (row['seconds'], min(row['repeats']), max(row['repeats']))
    cells.append((row['what'], *(f'{one:.2f}' for one in seconds)))
  return record.lay_out(('', 's', 'from', 'to'), cells)


def _first_step_seconds(effort):
  """Trains the smallest recipe until its first step is logged."""
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, *_TRAIN]
    command += [f'--config={_RUN}', '--config.dtype=float32']
    command += [f'--config.compile_effort={effort}']
    command += ['--config.log_every_steps=1', f'--workdir={folder}/run']
    metrics = pathlib.Path(folder, 'run', 'metrics.jsonl')
    begin = time.perf_counter()
    training = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
    )
    try:
      # The first line is step 1; it is whole once the line has ended.
      while not (metrics.exists() and '\n' in metrics.read_text()):
        spent = time.perf_counter() - begin
        if training.poll() is not None or spent > _LIMIT:
          raise worker.WorkerError(f'{" ".join(command)}: no first step')
        time.sleep(_POLL)
      return time.perf_counter() - begin
    finally:
      training.kill()
      training.wait()
