"""One result whatever the layout: a run that goes on from one to another."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import mesh_program
import numpy as np
import pytest

from gswinrmt_jax.training import checkpoint, log

TESTS = pathlib.Path(__file__).parent
LIMIT = 300  # seconds that a process may take


def start(program, *arguments, devices):
  """Starts a program of this folder on so many devices of its own."""
  flags = os.environ.get('XLA_FLAGS', '')
  return subprocess.Popen(
      [sys.executable, TESTS / program, *map(str, arguments)],
      env={
          **os.environ,
          'JAX_PLATFORMS': 'cpu',
          'XLA_FLAGS': (
              f'{flags} --xla_force_host_platform_device_count={devices}'
          ),
          'PYTHONPATH': os.pathsep.join([str(TESTS), str(TESTS.parent)]),
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
  )


def end(*running):
  """Waits for them; returns what each said, and fails if one failed."""
  try:
    said = [process.communicate(timeout=LIMIT)[0] for process in running]
  finally:
    for process in running:
      process.kill()
  for process, text in zip(running, said, strict=True):
    assert process.returncode == 0, text
  return said


def free_port():
  with socket.socket() as found:
    found.bind(('localhost', 0))
    return found.getsockname()[1]
