"""A file is there whole or not at all."""

import os
import pathlib
import subprocess
import sys

import pytest

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError


def test_a_file_is_made_and_replaced(tmp_path):
  path = tmp_path / 'a.json'
  for text in ('one', 'two'):
    with files.replacing(path) as part:
      assert part.parent == tmp_path  # A rename does not cross file systems.
      part.write_text(text)
      assert not path.exists() or path.read_text() == 'one'
    assert path.read_text() == text
  assert os.listdir(tmp_path) == ['a.json']


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_what_was_there_stays_if_writing_fails(error, tmp_path):
  path = tmp_path / 'a.json'
  path.write_text('before')
  with pytest.raises(error), files.replacing(path) as part:
    part.write_text('half')
    raise error
  assert path.read_text() == 'before'
  assert os.listdir(tmp_path) == ['a.json']


def test_the_bytes_are_on_the_disk_before_the_name(tmp_path, monkeypatch):
  done = []
  replace = os.replace
  monkeypatch.setattr(
      os, 'fsync', lambda descriptor: done.append(os.fstat(descriptor).st_size)
  )
  monkeypatch.setattr(
      os, 'replace', lambda *paths: done.append('name') or replace(*paths)
  )
  with files.replacing(tmp_path / 'a') as part:
    part.write_bytes(b'12345')
  assert done == [5, 'name']


def test_a_part_that_was_never_begun_hides_no_error(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'none.b\.part'):
    with files.replacing(tmp_path / 'none' / 'b') as part:
      part.write_text('')
  with pytest.raises(ValueError, match='why'), files.replacing(tmp_path / 'a'):
    raise ValueError('why')


def test_a_disk_that_is_full(tmp_path):
  """What does not fit: a limit on the size of files, as a quota sets it."""
  (tmp_path / 'a').write_bytes(b'before')
  program = (
      'import pathlib, resource, signal, sys\n'
      'from gswinrmt_jax import files\n'
      'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
      'resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n'
      "with files.replacing(pathlib.Path(sys.argv[1], 'a')) as part:\n"
      "  part.write_bytes(b'1' * 5000)\n"
  )
  done = subprocess.run(
      [sys.executable, '-c', program, str(tmp_path)],
      cwd=pathlib.Path(files.__file__).parents[1],
      capture_output=True,
      text=True,
  )
  assert 'File too large' in done.stderr
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
  path.write_text('[1, {"b": null}]')
  assert files.read_json(path) == [1, {'b': None}]
