"""Processes that decode pictures."""

import processes


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
  child = processes.child_of_killed(code)
  processes.wait_for_end(child)
