"""Starts programs of this folder as processes on forced CPU devices."""

from collections.abc import Mapping
import os
import pathlib
import socket
import subprocess
import sys

_TESTS = pathlib.Path(__file__).parent
_LIMIT = 300  # seconds per program


def start(
    program: str,
    *arguments,
    devices: int,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen:
  """Starts a program, given its file, on this many forced CPU devices."""
  flags = os.environ.get('XLA_FLAGS', '')
  return subprocess.Popen(
      [sys.executable, str(_TESTS / program), *map(str, arguments)],
      env={
          **os.environ,
          'JAX_PLATFORMS': 'cpu',
          'XLA_FLAGS': (
              f'{flags} --xla_force_host_platform_device_count={devices}'
          ),
          'PYTHONPATH': os.pathsep.join([str(_TESTS), str(_TESTS.parent)]),
          **(environment or {}),
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
  )


def said(*running: subprocess.Popen, status: int | None = 0) -> list[str]:
  """Waits for programs, checks their exit status and returns their output.

  Args:
    *running: The programs.
    status: The exit status of all; None for any but 0.
  """
  try:
    texts = [process.communicate(timeout=_LIMIT)[0] for process in running]
  finally:
    for process in running:
      process.kill()
  for process, text in zip(running, texts, strict=True):
    if status is None:
      assert process.returncode != 0, text
    else:
      assert process.returncode == status, text
  return texts


def two(
    program: str,
    *arguments,
    devices: int,
    environment: Mapping[str, str] | None = None,
) -> list[subprocess.Popen]:
  """Starts two processes that join each other.

  The argument `JOIN` is replaced by `HOST:PORT,2,INDEX`.
  """
  port = free_port()
  joins = [f'localhost:{port},2,{index}' for index in range(2)]
  return [
      start(
          program,
          *(join if a == 'JOIN' else a for a in arguments),
          devices=devices,
          environment=environment,
      )
      for join in joins
  ]


def free_port() -> int:
  """Returns a free port."""
  with socket.socket() as found:
    found.bind(('localhost', 0))
    return found.getsockname()[1]
