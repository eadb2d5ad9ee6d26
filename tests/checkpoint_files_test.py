"""A checkpoint's files: listed, found damaged, removed whole."""

import shutil

import pytest

from gswinrmt_jax.checkpoints import checkpoint_files


@pytest.fixture
def folder(tmp_path):
  folder = tmp_path / 'checkpoints' / '5'
  part = checkpoint_files.part(folder)
  (part / 'state').mkdir(parents=True)
  (part / 'state' / 'a').write_bytes(b'0123456789')
  (part / 'meta').write_bytes(b'{}')
  assert part.parent == folder.parent and part.name != '5'
  checkpoint_files.finish(folder)
  assert not part.exists()
  return folder


def test_what_is_whole_has_no_damage(folder):
  assert checkpoint_files.damage(folder) == []


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (b'01234', 'state/a: 5 bytes instead of 10'),
        (b'', 'state/a: 0 bytes instead of 10'),
        (b'0123456780', 'state/a: its bytes changed'),
    ],
)
def test_damage_is_told_by_file(folder, content, said):
  (folder / 'state' / 'a').write_bytes(content)
  assert checkpoint_files.damage(folder) == [said]
  assert checkpoint_files.damage(folder, only='meta') == []
  assert checkpoint_files.damage(folder, only='state/a') == [said]


def test_a_missing_file_and_a_missing_or_broken_list(folder):
  (folder / 'state' / 'a').unlink()
  assert checkpoint_files.damage(folder) == ['state/a: missing']
  (folder / 'files.json').write_bytes(b'{"state/a"')
  assert checkpoint_files.damage(folder)[0].startswith('files.json: ')
  (folder / 'files.json').unlink()
  assert checkpoint_files.damage(folder) == [
      'meta/metadata: missing',
      'state/_METADATA: missing',
  ]


def test_a_kill_while_removing_leaves_no_half(folder, monkeypatch):
  class KilledError(Exception):
    pass

  def killed(path):
    (path / 'meta').unlink()
    raise KilledError

  with monkeypatch.context() as patch, pytest.raises(KilledError):
    patch.setattr(shutil, 'rmtree', killed)
    checkpoint_files.remove(folder)
  assert not folder.exists() and list(folder.parent.iterdir())
  checkpoint_files.remove_leftovers(folder.parent)
  assert not list(folder.parent.iterdir())


def test_what_is_set_aside_takes_no_others_place(folder):
  shelf = folder.parent.parent / 'damaged_checkpoints'
  for _ in range(3):
    checkpoint_files.set_aside(folder)
    folder.mkdir()
  assert {path.name for path in shelf.iterdir()} == {'5', '5_1', '5_2'}
  assert (shelf / '5' / 'meta').exists()
