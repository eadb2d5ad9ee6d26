"""Processes that decode pictures."""

import pathlib
import signal
import subprocess
import sys
import time


def test_workers_end_with_a_killed_process():
  """While they wait with batches that nobody will take."""
  code = (
      'import multiprocessing, os, signal\n'
      'from gswinrmt_jax.data import datasets, pipeline\n'
      "digits = datasets.load('digits', 'val', storage='decode', workers=1)\n"
      'batches = pipeline.train_batches(digits, batch_size=9, seed=0)\n'
      'next(batches)\n'
      'print(multiprocessing.active_children()[0].pid, flush=True)\n'
      'os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  done = subprocess.run(
      [sys.executable, '-c', code], stdout=subprocess.PIPE, timeout=90
  )
  assert done.returncode == -signal.SIGKILL
  status = pathlib.Path('/proc', done.stdout.decode().strip(), 'status')
  end = time.monotonic() + 20
  while status.exists() and 'State:\tZ' not in status.read_text():
    assert time.monotonic() < end
    time.sleep(0.05)
