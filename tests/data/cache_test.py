"""Tests the cache of decoded images: written once, atomically, and checked."""

import errno
import json
import os
import pathlib
import shutil
import threading

import folder_data
import numpy as np
import pytest

from gswinrmt_jax.data import datasets, decoded_cache, records
from gswinrmt_jax.errors import UserError


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  root = tmp_path_factory.mktemp('tfds')
  folder_data.write(root, {'train': folder_data.examples(11)})
  return root


@pytest.fixture
def root(written, tmp_path, monkeypatch):
  """A data set without a cache; the chunk size does not divide it."""
  monkeypatch.setattr(records, '_CHUNK', 4)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'user'))
  shutil.copytree(written / 'own', tmp_path / 'own')
  return tmp_path


def _images(root, split='train', size=(6, 5), crop=0.875):
  source = datasets.open_source('own', split, str(root))
  return records.Images(source, size, eval_crop=crop)


def _plain(root):
  return records.to_memory(_images(root))


def _caches(root):
  return sorted((root / 'own' / '1.0.0' / 'decoded').iterdir())


def test_it_holds_what_is_decoded_and_is_made_once(root, capsys, monkeypatch):
  images = _images(root)
  arrays = decoded_cache.load(images)
  want = _plain(root)
  np.testing.assert_array_equal(arrays.image, want.image)
  np.testing.assert_array_equal(arrays.label, want.label)
  assert not arrays.image.flags.writeable  # memory-mapped
  said = capsys.readouterr().out
  (folder,) = _caches(root)
  assert folder.name.startswith('train_6x5_crop0.875_')
  assert said.startswith("Decoding 11 images of 'train' once, to ")
  assert str(folder) in said

  monkeypatch.setattr(records, 'decode_all', lambda images: 1 / 0)
  again = decoded_cache.load(_images(root))
  np.testing.assert_array_equal(again.image, want.image)
  assert capsys.readouterr().out == ''


def test_what_the_images_depend_on_has_a_cache_of_its_own(root, monkeypatch):
  sets = [
      {},
      {'split': 'train[:5]'},
      {'size': (5, 6)},
      {'crop': 0.9},
      {'crop': 0.90001},
  ]
  for changes in sets:
    decoded_cache.load(_images(root, **changes))
  assert len(_caches(root)) == 5
  (shard,) = (root / 'own' / '1.0.0').glob('*array_record*')
  os.utime(shard, (1, 1))
  decoded_cache.load(_images(root))
  monkeypatch.setattr('PIL.__version__', '99')
  decoded_cache.load(_images(root))
  assert len(_caches(root)) == 7


def test_sizes_that_differ_are_refused_whatever_is_cached(root):
  height, width, _ = _images(root, size=None).image_shape
  decoded_cache.load(_images(root, size=(height, width)))
  with pytest.raises(UserError, match=r'set config\.data'):
    decoded_cache.load(_images(root, size=None))


def test_a_failure_leaves_nothing(root, monkeypatch):
  images = _images(root)
  images.read = lambda row: 1 / 0
  with pytest.raises(ZeroDivisionError):
    decoded_cache.load(images)
  assert not [p for p in _caches(root) if p.is_dir()]
  usage = type('Usage', (), {'free': 11 * 6 * 5 * 3 - 1})
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(UserError, match=r'no room in .* decoded images: set'):
    decoded_cache.load(_images(root))
  usage.free += 1
  decoded_cache.load(_images(root))


def test_what_a_killed_process_left_is_removed(root):
  (name,) = [decoded_cache._name(_images(root))]
  left = root / 'own' / '1.0.0' / 'decoded' / f'.{name}.abc.part'
  left.mkdir(parents=True)
  (left / 'image.npy').touch()
  decoded_cache.load(_images(root))
  assert [path.name for path in _caches(root)] == [name]


def test_two_at_once_make_it_once(root, capsys):
  loaded, threads = [], []
  for _ in range(2):
    threads.append(
        threading.Thread(
            target=lambda: loaded.append(decoded_cache.load(_images(root)))
        )
    )
    threads[-1].start()
  for thread in threads:
    thread.join()
  np.testing.assert_array_equal(loaded[0].image, loaded[1].image)
  assert capsys.readouterr().out.count('Decoding') == 1
  assert len(_caches(root)) == 1


def test_a_cache_that_another_user_may_read_alone_is_not_used(
    root, monkeypatch
):
  decoded_cache.load(_images(root))
  opened = decoded_cache._open

  def denied(folder, images):
    if folder.is_relative_to(root / 'own'):
      raise PermissionError(errno.EACCES, 'Permission denied')
    return opened(folder, images)

  monkeypatch.setattr(decoded_cache, '_open', denied)
  assert len(decoded_cache.load(_images(root))) == 11
  (folder,) = (root / 'user' / 'gswinrmt_jax' / 'own').iterdir()
  assert (folder / 'image.npy').exists()


def test_a_directory_that_cannot_be_written_to(root, monkeypatch):
  final = root / 'own' / '1.0.0'
  (final / 'decoded').touch()  # a file: not even root can write in it
  arrays = decoded_cache.load(_images(root))
  assert len(arrays) == 11
  (folder,) = (root / 'user' / 'gswinrmt_jax' / 'own').iterdir()
  assert (folder / 'image.npy').exists()
  decoded_cache.load(_images(root))  # found there
  monkeypatch.setenv('XDG_CACHE_HOME', str(final / 'decoded'))
  with pytest.raises(UserError, match='images cannot be written to') as caught:
    decoded_cache.load(_images(root))
  assert '\n' not in str(caught.value)


def _flip(path, offset):
  content = bytearray(path.read_bytes())
  content[offset] ^= 1
  path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    'damage',
    [
        lambda folder: os.truncate(folder / 'image.npy', 500),
        lambda folder: _flip(folder / 'crc32.npy', -1),
        lambda folder: _flip(folder / 'label.npy', -1),
        lambda folder: np.save(
            folder / 'image.npy', np.zeros((10, 6, 5, 3), np.uint8)
        ),
        lambda folder: (folder / 'cache.json').unlink(),
        lambda folder: (folder / 'cache.json').write_text(json.dumps([])),
    ],
)
def test_damage_is_one_line(root, damage):
  decoded_cache.load(_images(root))
  (folder,) = _caches(root)
  damage(pathlib.Path(folder))
  with pytest.raises(
      UserError, match=r'cannot be read .*remove that folder'
  ) as caught:
    decoded_cache.load(_images(root))
  assert '\n' not in str(caught.value) and str(folder) in str(caught.value)


def test_every_flipped_bit_of_an_image_is_noticed_when_it_is_read(root):
  decoded_cache.load(_images(root))
  (folder,) = _caches(root)
  start = (folder / 'image.npy').stat().st_size - 11 * 90
  for image in range(11):
    _flip(folder / 'image.npy', start + 90 * image + 7 * image)
    arrays = decoded_cache.load(_images(root))
    others = np.delete(np.arange(11), image)
    arrays.gather(others)
    said = f'cannot be read .image {image} changed.: if it is damaged, remove'
    for rows in ([image], [0, image], np.arange(11)):
      with pytest.raises(UserError, match=said):
        arrays.gather(np.asarray(rows))
    _flip(folder / 'image.npy', start + 90 * image + 7 * image)
