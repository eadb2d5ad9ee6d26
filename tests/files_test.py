"""Tests atomic writes of files and folders, and locks between processes."""

import errno
import fcntl
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from unittest import mock

import pytest
import synced

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError


def test_a_file_is_made_and_replaced(tmp_path):
  path = tmp_path / 'a.json'
  for text in ('one', 'two'):
    with files.replaced(path) as part:
      assert part.parent == tmp_path  # A rename does not cross file systems.
      part.write_text(text)
      assert not path.exists() or path.read_text() == 'one'
    assert path.read_text() == text
  assert os.listdir(tmp_path) == ['a.json']


def test_text_is_utf8_in_any_locale(tmp_path):
  code = (
      'import pathlib, sys; from gswinrmt_jax import files; '
      'files.write_text(pathlib.Path(sys.argv[1]), chr(8730))'
  )
  locale = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
  command = [sys.executable, '-c', code, str(tmp_path / 'text')]
  subprocess.run(command, env=os.environ | locale, check=True)
  assert (tmp_path / 'text').read_bytes() == '√'.encode()


def test_a_file_that_can_be_written_leaves_nothing_behind(tmp_path):
  (tmp_path / 'file').touch()
  files.check_can_write(tmp_path / 'new' / 'folder' / 'a.json')
  files.check_can_write(tmp_path / 'file')
  with pytest.raises(UserError, match=r'a\.json: a file is in the way'):
    files.check_can_write(tmp_path / 'file' / 'new' / 'a.json')
  with pytest.raises(UserError, match='it is a folder'):
    files.check_can_write(tmp_path)
  with pytest.raises(UserError, match='/dev/null: it is not a regular file'):
    files.check_can_write(pathlib.Path('/dev/null'))
  assert os.listdir(tmp_path) == ['file']


def test_a_folder_is_made_once(tmp_path):
  path = tmp_path / 'a'

  def write():
    with files.replaced(path) as part:
      (part / 'b').mkdir(parents=True)
      (part / 'b' / 'c').write_text('c')
      assert not (path / 'b' / 'd').exists()

  write()
  assert (path / 'b' / 'c').read_text() == 'c'
  with pytest.raises(OSError):
    write()
  assert os.listdir(tmp_path) == ['a']


def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch):
  path = tmp_path / 'a'

  def write(text):
    with files.replaced(path, folder=True) as part:
      part.mkdir()
      (part / 'b').write_text(text)

  write('one')
  write('two')
  assert (path / 'b').read_text() == 'two'

  def failing(source, target):
    raise OSError('no')

  with monkeypatch.context() as patch:
    patch.setattr(os, 'replace', failing)
    with pytest.raises(OSError, match='no'):
      write('three')
  assert (path / 'b').read_text() == 'two'
  assert os.listdir(tmp_path) == ['a']
  # Killed after the old folder was renamed, before the new one was.
  path.rename(tmp_path / '.a.1234.replaced')
  (tmp_path / '.a.5678.part').mkdir()
  files.remove_leftovers(tmp_path)
  assert (path / 'b').read_text() == 'two'
  assert os.listdir(tmp_path) == ['a']
  # Killed after both.
  (tmp_path / '.a.1234.replaced').mkdir()
  files.remove_leftovers(tmp_path)
  assert (path / 'b').read_text() == 'two'
  assert os.listdir(tmp_path) == ['a']


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_what_was_there_stays_if_writing_fails(error, tmp_path):
  path = tmp_path / 'a.json'
  path.write_text('before')
  with pytest.raises(error), files.replaced(path) as part:
    part.write_text('half')
    raise error
  with pytest.raises(error), files.replaced(tmp_path / 'b') as part:
    part.mkdir()
    (part / 'file').touch()
    raise error
  assert path.read_text() == 'before'
  assert os.listdir(tmp_path) == ['a.json']


def test_bytes_and_names_are_on_the_disk_before_the_new_name(
    tmp_path, monkeypatch
):
  done = synced.watch(monkeypatch)
  with files.replaced(tmp_path / 'a') as part:
    (part / 'b').mkdir(parents=True)
    (part / 'b' / 'c').touch()
  *inside, part, renamed, last = done
  assert inside == ['b', 'c'] and part.endswith('.part')
  assert (renamed, last) == ('RENAMED', tmp_path.name)
  done.clear()
  files.write_text(tmp_path / 'd', 'text')
  assert done[0].endswith('.part') and done[1:] == ['RENAMED', tmp_path.name]


def test_a_part_that_was_never_begun_hides_no_error(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'none.\.b\.\w+\.part'):
    files.write_text(tmp_path / 'none' / 'b', '')
  for error in (ValueError, OSError):
    with pytest.raises(error, match=r'^why$'), files.replaced(tmp_path / 'a'):
      raise error('why')


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path):
  path = tmp_path / ('猫' * 85)  # 255 bytes
  files.write_text(path, 'x')
  assert path.read_text() == 'x' and len(os.listdir(tmp_path)) == 1


def test_what_a_killed_process_left_is_removed(tmp_path):
  (tmp_path / '.a.1234.part').touch()
  (tmp_path / '.b.1234.part' / 'folder').mkdir(parents=True)
  (tmp_path / 'c.part').touch()
  files.remove_leftovers(tmp_path)
  assert os.listdir(tmp_path) == ['c.part']
  files.remove_leftovers(tmp_path / 'none')


def test_a_disk_that_is_full(tmp_path):
  """A limit on the size of files, like a quota, stands in for a full disk."""
  (tmp_path / 'a').write_bytes(b'before')
  program = (
      'import pathlib, resource, signal, sys\n'
      'from gswinrmt_jax import files\n'
      'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
      'resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n'
      "files.write_text(pathlib.Path(sys.argv[1], 'a'), '1' * 5000)\n"
  )
  done = subprocess.run(
      [sys.executable, '-c', program, str(tmp_path)],
      cwd=pathlib.Path(files.__file__).parents[1],
      capture_output=True,
      text=True,
  )
  assert f"File too large: '{tmp_path}/a'" in done.stderr
  assert os.listdir(tmp_path) == ['a']
  assert (tmp_path / 'a').read_bytes() == b'before'


@pytest.mark.parametrize(
    'content', [b'', b'{"a": ', b'\xff\xfe\x00', b'[' * 100_000, b'9' * 5000]
)
def test_json_that_cannot_be_read(content, tmp_path):
  path = tmp_path / 'a.json'
  with pytest.raises(FileNotFoundError):
    files.read_json(path)
  path.write_bytes(content)
  with pytest.raises(UserError, match=r'a\.json cannot be read: ') as caught:
    files.read_json(path)
  assert '\n' not in str(caught.value)


_HOLD = """
import pathlib, sys, time
from gswinrmt_jax import files
with files.locked(pathlib.Path(sys.argv[1])) as held:
  print(held, flush=True)
  time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
  """Another process that holds the lock tmp_path / 'lock'."""
  process = subprocess.Popen(
      [sys.executable, '-c', _HOLD, str(tmp_path / 'lock')],
      stdout=subprocess.PIPE,
      text=True,
  )
  try:
    assert process.stdout.readline() == 'True\n'
    yield process
  finally:
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_lock_is_held_until_its_process_is_killed(tmp_path, holder, capsys):
  lock = tmp_path / 'lock'
  who = f'process {holder.pid} on {socket.gethostname()}'
  with pytest.raises(files.LockedError, match=who), files.locked(lock):
    pass
  got = threading.Event()

  def wait():
    with files.locked(lock, wait=True) as held:
      assert held and f'process {os.getpid()} ' in lock.read_text()
      got.set()

  waiting = threading.Thread(target=wait)
  waiting.start()
  assert not got.wait(0.2)
  holder.send_signal(signal.SIGKILL)
  assert got.wait(60)
  waiting.join()
  assert f'waiting for {who}, which holds {lock}' in capsys.readouterr().out
  assert os.listdir(tmp_path) == []


def test_the_lock_file_of_another_user_is_locked(tmp_path, monkeypatch):
  """It may neither be written nor, in a sticky folder, removed."""
  path, opened = tmp_path / '.lock', pathlib.Path.open
  path.write_text('process 7 on a')

  def denied(self, mode='r', *args, **how):
    if mode != 'r':
      raise PermissionError(errno.EACCES, 'Permission denied', str(self))
    return opened(self, mode, *args, **how)

  monkeypatch.setattr(pathlib.Path, 'open', denied)
  monkeypatch.setattr(
      pathlib.Path, 'unlink', mock.Mock(side_effect=PermissionError)
  )
  with files.locked(path) as held:
    assert held and path.read_text() == 'process 7 on a'
    with pytest.raises(files.LockedError, match='process 7 on a'):
      with files.locked(path):
        pass
  with pytest.raises(PermissionError):
    with files.locked(tmp_path / 'other'):
      pass


def test_a_lock_file_that_another_host_removed_is_opened_anew(
    tmp_path, monkeypatch
):
  """NFS then calls the open file stale."""
  fstat, calls = os.fstat, []

  def stale(descriptor):
    calls.append(descriptor)
    if len(calls) == 1:
      raise OSError(errno.ESTALE, 'Stale file handle')
    return fstat(descriptor)

  monkeypatch.setattr(os, 'fstat', stale)
  with files.locked(tmp_path / '.lock') as held:
    assert held and len(calls) == 2


@pytest.mark.parametrize('number', [errno.EINVAL, errno.EIO])
def test_a_file_system_may_not_wait_for_the_names_in_a_folder(
    number, tmp_path, monkeypatch
):
  def fsync(descriptor):
    if os.path.isdir(f'/proc/self/fd/{descriptor}'):
      raise OSError(number, os.strerror(number))

  monkeypatch.setattr(os, 'fsync', fsync)
  if number == errno.EINVAL:
    files.write_text(tmp_path / 'a', 'x')
  else:
    with pytest.raises(OSError, match='Input/output error'):
      files.write_text(tmp_path / 'a', 'x')


def test_a_lock_left_over_locks_nothing(tmp_path):
  (tmp_path / 'lock').write_text('process 1 on HOST\n')
  with files.locked(tmp_path / 'lock') as held:
    assert held


def test_the_lock_of_a_folder_that_takes_the_place_of_a_moved_one_stays(
    tmp_path,
):
  folder = tmp_path / 'run'
  folder.mkdir()
  with files.locked(folder / '.lock'):
    folder.rename(tmp_path / 'moved')
    folder.mkdir()
    (folder / '.lock').write_text('process 7 on a')  # another run's
  assert (folder / '.lock').read_text() == 'process 7 on a'


def test_a_lock_file_removed_as_it_is_opened_is_not_taken(
    tmp_path, monkeypatch
):
  """Its last holder removed it, so others would lock a new file."""
  path, flock, calls = tmp_path / 'lock', fcntl.flock, []

  def late(file, how):
    calls.append(how)
    if len(calls) == 1:
      path.unlink()
    flock(file, how)

  monkeypatch.setattr(fcntl, 'flock', late)
  with files.locked(path) as held:
    assert held
    with pytest.raises(files.LockedError, match=str(os.getpid())):
      with files.locked(path):
        pass
  assert len(calls) == 3


def test_without_locks_in_the_file_system_nothing_is_locked(
    tmp_path, monkeypatch
):
  def flock(file, how):
    raise OSError(95, 'Operation not supported')

  monkeypatch.setattr(fcntl, 'flock', flock)
  path = tmp_path / 'lock'
  with files.locked(path) as one, files.locked(path) as other:
    assert one is other is False


def test_as_many_files_may_be_open_as_are_needed():
  program = (
      'import resource as r; from gswinrmt_jax import files; '
      'r.setrlimit(r.RLIMIT_NOFILE, (64, r.getrlimit(r.RLIMIT_NOFILE)[1])); '
      'files.allow_open(500); print(r.getrlimit(r.RLIMIT_NOFILE)[0])'
  )
  done = subprocess.run(
      [sys.executable, '-c', program], stdout=subprocess.PIPE, check=True
  )
  assert done.stdout == b'756\n'
