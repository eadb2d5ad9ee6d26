"""Runs the tiny model in separate processes that start quickly.

One process, `python tests/tiny_runs.py`, imports everything and forks for each
run, before JAX is initialised. Tests pass lines of Python that are executed
before the run, to inject faults.
"""

import gc
import json
import os
import pathlib
import signal
import subprocess
import sys

import compiling
import processes

ROOT = pathlib.Path(__file__).parent.parent
TIMES = ('seconds', 'images_per_second', 'data_wait')


class Launcher:
  """Starts runs; a context manager.

  Attributes:
    environment: Environment variables of its processes.
  """

  def __init__(self, folder):
    """Starts the process; its runs share a compilation cache in the folder."""
    self.environment = {
        **os.environ,
        'PYTHONPATH': f'{ROOT}{os.pathsep}{ROOT / "tests"}',
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': compiling.usual_flags(),
        'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled'),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }
    self._process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=self.environment,
        cwd=ROOT,
    )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._process.stdin.close()
    self._process.wait()
    self._process.stdout.close()

  def start(self, folder, before='', **changes):
    """Starts a run and returns it without waiting."""
    said = folder.parent / f'{folder.name}_said'
    self._ask(
        folder=str(folder), said=str(said), before=before, changes=changes
    )
    return Run(self, self._answer(), folder, said)

  def run(self, folder, before='', **changes):
    """Runs to the end; returns the exit status and the output."""
    run = self.start(folder, before, **changes)
    return run.wait(), run.said()

  def _ask(self, **what):
    self._process.stdin.write(json.dumps(what) + '\n')
    self._process.stdin.flush()

  def _answer(self):
    return json.loads(self._process.stdout.readline())


class Run:
  """A run that was started."""

  def __init__(self, launcher, pid, folder, said):
    self._launcher, self.pid = launcher, pid
    self.folder, self._said = folder, said

  def wait(self):
    """Waits for the end; returns the exit status, negative for a signal."""
    self._launcher._ask(wait=self.pid)
    return self._launcher._answer()

  def said(self):
    """Returns the output so far."""
    return self._said.read_text()

  def wait_for(self, text):
    """Waits up to a minute until the output contains `text`."""
    processes.until(
        lambda: self._said.exists() and text in self.said(), said=self.said
    )


def checksums(folder, step):
  """Returns the checksums of all arrays in a checkpoint."""
  path = folder / 'checkpoints' / str(step) / 'meta' / 'metadata'
  return json.loads(path.read_text())['crc32']


def figures(folder):
  """Returns the entries of the log without times."""
  from gswinrmt_jax.runs import metrics_log

  return [
      {name: value for name, value in entry.items() if name not in TIMES}
      for entry in metrics_log.read_metrics(folder)
  ]


def _serve():
  # What runs import when they need it is imported once, before they fork.
  import grain  # noqa: F401
  import matplotlib  # noqa: F401
  import orbax.checkpoint  # noqa: F401
  import PIL.ImageDraw
  import PIL.ImageFont  # noqa: F401
  import pytest
  import tensorboardX.record_writer  # noqa: F401
  import tiny_parts

  from gswinrmt_jax.commands import guard
  from gswinrmt_jax.train import train_loop

  gc.freeze()  # the imported modules, as in `conftest.py`
  gc.set_threshold(50_000)
  # Until a run has begun, Ctrl-C ends its process: an exception inside of
  # `fork` would leave locks held.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  answers = os.fdopen(os.dup(1), 'w')
  for line in sys.stdin:
    asked = json.loads(line)
    if 'wait' in asked:
      answer = os.waitstatus_to_exitcode(os.waitpid(asked['wait'], 0)[1])
    else:
      answer = os.fork()
      if not answer:
        _be_a_run(asked, guard, train_loop, tiny_parts, pytest.MonkeyPatch())
    print(json.dumps(answer), file=answers, flush=True)


def _be_a_run(asked, guard, train_loop, tiny_parts, patch):
  """Executes a run, then ends the process."""
  said = os.open(asked['said'], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
  for stream in (1, 2):
    os.dup2(said, stream)
  status = 70  # for a bug; its traceback is in the output
  try:
    tiny_parts.install(patch)
    names = {
        'patch': patch,
        'folder': pathlib.Path(asked['folder']),
    }
    exec(asked['before'], names)
    recipe = tiny_parts.recipe(**asked['changes'])

    def train():
      # As in a terminal: `&` and `nohup` make a process ignore these.
      signal.signal(signal.SIGINT, signal.default_int_handler)
      signal.signal(signal.SIGHUP, signal.SIG_DFL)
      train_loop.train(recipe, names['folder'])

    status = guard.guarded(train)
  except BaseException:
    import traceback

    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == '__main__':
  _serve()
