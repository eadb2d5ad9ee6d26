"""How a data set comes to be in its place."""

from concurrent import futures
import errno
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from gswinrmt_jax.data import prepared
from gswinrmt_jax.errors import UserError


def _write(work):
  folder = work / 'thing' / '1.0.0'
  folder.mkdir(parents=True)
  (folder / 'data').write_text('whole')
  (work / 'downloads').mkdir()


def _final(tmp_path):
  return prepared.directory('thing', '1.0.0', str(tmp_path / 'tfds'))


def test_only_the_data_set_is_left(tmp_path):
  assert prepared.build(_final(tmp_path), _write)
  assert os.listdir(tmp_path / 'tfds') == ['thing']
  assert (_final(tmp_path) / 'data').read_text() == 'whole'


@pytest.mark.parametrize('failure', [KeyboardInterrupt, ValueError])
def test_failure_leaves_only_what_is_kept(failure, tmp_path):
  def fails(work):
    _write(work)
    raise failure

  with pytest.raises(failure):
    prepared.build(_final(tmp_path), fails)
  assert os.listdir(tmp_path / 'tfds') == []

  def keeps(work):
    prepared.kept(work).mkdir()
    (prepared.kept(work) / 'journal').write_text('a')
    fails(work)

  with pytest.raises(failure):
    prepared.build(_final(tmp_path), keeps)
  hidden = tmp_path / 'tfds' / '.thing-preparing'
  assert os.listdir(tmp_path / 'tfds') == [hidden.name]
  assert os.listdir(hidden) == ['keep']

  def goes_on(work):
    assert (prepared.kept(work) / 'journal').read_text() == 'a'
    _write(work)

  assert prepared.build(_final(tmp_path), goes_on)
  assert os.listdir(tmp_path / 'tfds') == ['thing']


def test_what_a_killed_process_left_is_hidden_and_removed(tmp_path):
  code = (
      'import os, pathlib, signal, sys\n'
      'from gswinrmt_jax.data import prepared\n'
      'def write(work):\n'
      '  (work / "thing" / "1.0.0").mkdir(parents=True)\n'
      '  (work / "thing" / "1.0.0" / "half").touch()\n'
      '  os.kill(os.getpid(), signal.SIGKILL)\n'
      'prepared.build(pathlib.Path(sys.argv[1]), write)\n'
  )
  done = subprocess.run([sys.executable, '-c', code, str(_final(tmp_path))])
  assert done.returncode == -signal.SIGKILL
  left = os.listdir(tmp_path / 'tfds')
  assert left and all(name.startswith('.') for name in left)
  assert prepared.build(_final(tmp_path), _write)
  assert os.listdir(tmp_path / 'tfds') == ['thing']
  assert os.listdir(_final(tmp_path)) == ['data']


def _wait_for(capsys, text):
  seen, end = '', time.monotonic() + 20
  while text not in seen:
    assert time.monotonic() < end
    time.sleep(0.01)
    seen += capsys.readouterr().out


def test_second_builder_waits_for_the_first(tmp_path, capsys):
  begun, go_on = threading.Event(), threading.Event()

  def slow(work):
    begun.set()
    assert go_on.wait(20)
    _write(work)

  def never(work):
    raise AssertionError('built twice')

  with futures.ThreadPoolExecutor() as pool:
    first = pool.submit(prepared.build, _final(tmp_path), slow)
    assert begun.wait(20)
    second = pool.submit(prepared.build, _final(tmp_path), never)
    _wait_for(capsys, 'waiting')
    go_on.set()
    assert first.result() and not second.result()
  assert os.listdir(tmp_path / 'tfds') == ['thing']


def test_never_two_at_a_time(tmp_path, capsys):
  begun, go_on = threading.Event(), threading.Event()

  def fails(work):
    begun.set()
    assert go_on.wait(20)
    raise ValueError

  def builds(work):
    assert not others
    begun.set()
    assert go_on.wait(20)
    _write(work)
    assert not others

  others = []
  with futures.ThreadPoolExecutor() as pool:
    first = pool.submit(prepared.build, _final(tmp_path), fails)
    assert begun.wait(20)
    begun.clear()
    second = pool.submit(prepared.build, _final(tmp_path), builds)
    _wait_for(capsys, 'waiting')
    go_on.set()
    assert isinstance(first.exception(), ValueError)
    go_on.clear()
    # The lock's file was removed while the second waited for it.
    assert begun.wait(20)
    third = pool.submit(prepared.build, _final(tmp_path), others.append)
    _wait_for(capsys, 'waiting')
    go_on.set()
    assert second.result() and not third.result()


def test_without_locks_both_build_and_one_is_kept(tmp_path, monkeypatch):
  def flock(file, how):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)
  together, failing = threading.Barrier(2, timeout=20), threading.Event()

  def builds(work):
    prepared.kept(work).mkdir(exist_ok=True)
    (prepared.kept(work) / 'journal').touch()
    together.wait()
    _write(work)  # Fails if the other is in the same place.
    together.wait()
    assert failing.wait(20)
    assert (work / 'thing' / '1.0.0' / 'data').exists()

  def fails(work):
    together.wait()
    _write(work)
    together.wait()
    raise ValueError

  with futures.ThreadPoolExecutor() as pool:
    good = pool.submit(prepared.build, _final(tmp_path), builds)
    bad = pool.submit(prepared.build, _final(tmp_path), fails)
    assert isinstance(bad.exception(30), ValueError)
    failing.set()
    assert good.result(30)

  def late(work):
    (work / 'mine').touch()
    prepared.build(_final(tmp_path), _write)
    assert (work / 'mine').exists()
    _write(work)

  assert os.listdir(tmp_path / 'tfds') == ['thing']
  (_final(tmp_path) / 'data').unlink()
  _final(tmp_path).rmdir()
  assert not prepared.build(_final(tmp_path), late)
  assert os.listdir(tmp_path / 'tfds') == ['thing']
  assert (_final(tmp_path) / 'data').read_text() == 'whole'


def test_a_full_disk_is_one_line(tmp_path):
  def full(work):
    raise RuntimeError('write() failed\nmore')

  with pytest.raises(UserError) as caught:
    prepared.build(_final(tmp_path), full)
  message = str(caught.value)
  root = tmp_path / 'tfds'
  assert message.startswith(f'cannot write the data directory {root}: write()')
  assert '\n' not in message and os.listdir(root) == []


def test_where_data_sets_are(monkeypatch, tmp_path):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  assert prepared.directory('a', '2.0.0', '') == tmp_path / 'a' / '2.0.0'
  monkeypatch.delenv('TFDS_DATA_DIR')
  monkeypatch.setenv('HOME', '/home/x')
  root = pathlib.Path('/home/x/tensorflow_datasets')
  assert prepared.data_root('') == root
  assert prepared.data_root('~/y') == pathlib.Path('/home/x/y')


def test_what_to_type():
  assert prepared.command('cifar10') == 'gswinrmt prepare cifar10'
  assert prepared.command('imagenet') == 'gswinrmt prepare imagenet'
  assert prepared.command('birds') == 'gswinrmt prepare folder birds'


def test_nothing_is_there(tmp_path):
  assert prepared.open_prepared('thing', '1.0.0', str(tmp_path)) is None
