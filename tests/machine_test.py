"""Cores and memory, as the files of a made-up system tell."""

import os

import pytest

from gswinrmt_jax.data import machine


@pytest.fixture
def write(tmp_path, monkeypatch):
  monkeypatch.setattr(machine, '_ROOT', tmp_path)

  def write(path, text):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)

  return write


def test_cores_are_those_that_may_be_used(monkeypatch):
  monkeypatch.setattr(
      os, 'sched_getaffinity', lambda pid: {1, 4, 5}, raising=False
  )
  monkeypatch.setattr(os, 'cpu_count', lambda: 64)
  assert machine.cores() == 3
  monkeypatch.delattr(os, 'sched_getaffinity')
  assert machine.cores() == 64


def test_memory_is_what_is_available(write):
  assert machine.free_memory() is None
  write('proc/meminfo', 'MemTotal: 900 kB\nMemAvailable:   300 kB\n')
  assert machine.free_memory() == 300 * 1024


def test_a_group_has_a_limit_of_its_own(write):
  write('proc/meminfo', 'MemAvailable: 300 kB\n')
  write('proc/self/cgroup', '0::/job/task\n')
  write('sys/fs/cgroup/job/task/memory.max', 'max\n')
  write('sys/fs/cgroup/job/task/memory.current', '5000\n')
  assert machine.free_memory() == 300 * 1024
  write('sys/fs/cgroup/job/memory.max', '90000\n')
  write('sys/fs/cgroup/job/memory.current', '50000\n')
  assert machine.free_memory() == 40000
  # What is in the page cache and not in use would be given up.
  write('sys/fs/cgroup/job/memory.stat', 'file 9000\ninactive_file 7000\n')
  assert machine.free_memory() == 47000
  write('sys/fs/cgroup/job/memory.current', '99000\n')
  assert machine.free_memory() == 0


def test_a_container_whose_path_is_the_hosts(write):
  write('proc/self/cgroup', '4:cpu:/x\n9:memory:/docker/abc\n')
  write('sys/fs/cgroup/memory/memory.limit_in_bytes', '800\n')
  write('sys/fs/cgroup/memory/memory.usage_in_bytes', '100\n')
  write('sys/fs/cgroup/memory/memory.stat', 'total_inactive_file 50\n')
  assert machine.free_memory() == 750


def test_shared_memory_may_be_missing(write, tmp_path):
  assert machine.free_shared_memory() is None
  write('dev/shm/x', '')
  assert machine.free_shared_memory() > 0
