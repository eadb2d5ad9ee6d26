"""Starts programs of this folder on devices of their own."""

from collections.abc import Mapping
import os
import pathlib
import socket
import subprocess
import sys

_TESTS = pathlib.Path(__file__).parent
_LIMIT = 300  # seconds that one may take


def start(
    program: str,
    *arguments,
    devices: int,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen:
  """Starts a program, given its file, on so many forced CPU devices."""
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
  """Waits for programs and returns what each said, if they end as they must.

  Args:
    *running: The programs.
    status: With which they must end; None for any but 0.
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
  """Starts two processes that join: `JOIN` stands for how, in the arguments."""
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
  """Returns a port that nobody listens on."""
  with socket.socket() as found:
    found.bind(('localhost', 0))
    return found.getsockname()[1]
