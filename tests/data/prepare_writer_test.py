"""Tests writing images to a TFDS data set, byte for byte and atomically."""

from collections import Counter
from concurrent import futures
import errno
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import types

import image_files
import numpy as np
import PIL.Image
import PIL.ImageOps
import processes
import pytest
import tensorflow_datasets as tfds

from gswinrmt_jax.data import class_folders, image_paths, prepared
from gswinrmt_jax.data.collection import ClassLabels, Collection
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import inspection, writer
from gswinrmt_jax.errors import UserError

_NAMES = [
    *image_files.names('train/кот', 'train/dog', count=10),
    'val/dog/0.jpg',
    'val/кот/picture one.jpg',
]


def _prepared(tmp_path, **options):
  return writer.prepare(
      'pets',
      lambda: class_folders.find(tmp_path / 'in'),
      data_dir=str(tmp_path / 'tfds'),
      **options,
  )


def _records(final, split):
  """Returns {file name: (bytes, label)} as unmodified TFDS reads them."""
  builder = tfds.builder_from_directory(final)
  source = builder.as_data_source(
      split, decoders={'image': tfds.decode.SkipDecoding()}
  )
  return {
      record['file_name'].decode(): (record['image'], int(record['label']))
      for record in source
  }


def test_tfds_reads_the_very_bytes(tmp_path, capfd):
  contents = image_files.write(tmp_path / 'in', _NAMES)
  odd = {
      'train/dog/cmyk.jpg': image_files.encoded(90, 'JPEG', 'CMYK'),
      'train/dog/is a png.jpg': image_files.encoded(91, 'PNG', 'P'),
  }
  for name, content in odd.items():
    (tmp_path / 'in' / name).write_bytes(content)
  contents |= odd
  final = _prepared(tmp_path, jobs=2)
  assert final == tmp_path / 'tfds' / 'pets' / '1.0.0'
  assert os.listdir(tmp_path / 'tfds') == ['pets']
  for split in ('train', 'val'):
    assert _records(final, split) == {
        name: (content, int('кот' in name))
        for name, content in contents.items()
        if name.startswith(split)
    }
  builder = tfds.builder_from_directory(final)
  assert builder.info.features['label'].names == ['dog', 'кот']
  assert builder.info.splits['train'].num_examples == 22
  # Unmodified TFDS decodes images with three channels.
  image = next(iter(builder.as_data_source('val')))['image']
  assert image.shape == (5, 7, 3) and image.dtype == np.uint8
  found = json.loads((final / 'report.json').read_text('utf-8'))
  assert found['splits']['train']['by_class'] == [12, 10]
  out, err = capfd.readouterr()
  assert 'pets: train 22, val 2 images of 2 classes' in out
  assert out.endswith(f'pets: prepared {final}\n') and not err


def test_slices_are_mixed_samples(tmp_path):
  image_files.write(tmp_path / 'in', image_files.names('a', 'b', 'c', count=20))
  collection = class_folders.find(tmp_path / 'in')
  collection.splits = {'train': collection.splits['']}
  final = writer.prepare(
      'three', lambda: collection, data_dir=str(tmp_path / 'tfds')
  )
  labels = [label for _, label in _records(final, 'train[:50%]').values()]
  assert len(labels) == 30 and min(np.bincount(labels, minlength=3)) >= 5


def test_shards_by_size(tmp_path, monkeypatch):
  contents = image_files.write(tmp_path / 'in', _NAMES)
  size = sum(map(len, contents.values())) // len(contents)
  monkeypatch.setattr(writer, '_SHARD_BYTES', 6 * size)
  final = _prepared(tmp_path)
  info = tfds.builder_from_directory(final).info.splits['train']
  assert info.num_shards == 4  # 20 images, at most 6 in each
  assert len(_records(final, 'train')) == 20


def test_a_class_without_a_whole_picture(tmp_path):
  image_files.write(tmp_path / 'in', ['train/a/1.jpg', 'train/b/1.jpg'])
  (tmp_path / 'in/train/b/1.jpg').write_bytes(b'x')
  with pytest.raises(UserError, match="class 'b' has no image"):
    _prepared(tmp_path, skip_damaged=True)


@pytest.mark.parametrize('gone', [False, True])
def test_a_file_that_changes_under_way(gone, tmp_path, monkeypatch):
  image_files.write(tmp_path / 'in', _NAMES)
  path = tmp_path / 'in/train/dog/3.jpg'

  def change(*_):
    path.unlink() if gone else path.write_bytes(image_files.encoded(99))
    return []

  monkeypatch.setattr(inspection, 'lines', change)
  said = ': No such file' if gone else ' has changed since'
  with pytest.raises(UserError, match=f'^{path}{said}'):
    _prepared(tmp_path)
  assert os.listdir(tmp_path / 'tfds') == []


def _write(folder):
  (folder / 'data').write_text('whole')


def _final(tmp_path):
  return tmp_path / 'tfds' / 'thing' / '1.0.0'


@pytest.mark.parametrize('failure', [KeyboardInterrupt, ValueError])
def test_failure_leaves_nothing(failure, tmp_path):
  def fails(folder):
    _write(folder)
    raise failure

  with pytest.raises(failure):
    writer.write_whole(_final(tmp_path), fails)
  assert os.listdir(tmp_path / 'tfds') == []
  older = tmp_path / 'tfds' / 'thing' / '0.1.0'
  older.mkdir(parents=True)
  with pytest.raises(failure):
    writer.write_whole(_final(tmp_path), fails)
  assert os.listdir(older.parent) == [older.name]


def test_what_a_killed_process_left_is_hidden_and_removed(tmp_path):
  code = (
      'import os, pathlib, signal, sys\n'
      'from gswinrmt_jax.data.prepare import writer\n'
      'def write(folder):\n'
      '  (folder / "half").touch()\n'
      '  os.kill(os.getpid(), signal.SIGKILL)\n'
      'writer.write_whole(pathlib.Path(sys.argv[1]), write)\n'
  )
  done = subprocess.run([sys.executable, '-c', code, str(_final(tmp_path))])
  assert done.returncode == -signal.SIGKILL
  left = os.listdir(tmp_path / 'tfds' / 'thing')
  assert left and all(name.startswith('.') for name in left)
  assert prepared.names(str(tmp_path / 'tfds')) == []
  writer.write_whole(_final(tmp_path), _write)
  assert os.listdir(tmp_path / 'tfds') == ['thing']
  assert os.listdir(tmp_path / 'tfds' / 'thing') == ['1.0.0']
  assert os.listdir(_final(tmp_path)) == ['data']


def test_a_second_writer_waits_for_the_first(tmp_path, capsys):
  begun, go_on = threading.Event(), threading.Event()

  def slow(folder):
    begun.set()
    assert go_on.wait(20)
    _write(folder)

  def never(folder):
    raise AssertionError('written twice')

  with futures.ThreadPoolExecutor() as pool:
    first = pool.submit(writer.write_whole, _final(tmp_path), slow)
    assert begun.wait(20)
    second = pool.submit(writer.write_whole, _final(tmp_path), never)
    processes.until(lambda: 'waiting' in capsys.readouterr().out, seconds=20)
    go_on.set()
    assert first.result() and not second.result()
  assert os.listdir(tmp_path / 'tfds') == ['thing']


def test_without_locks_both_write_and_the_first_is_kept(tmp_path, monkeypatch):
  def flock(file, how):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)

  def late(folder):
    (folder / 'mine').touch()
    writer.write_whole(_final(tmp_path), _write)
    assert (folder / 'mine').exists()

  writer.write_whole(_final(tmp_path), late)
  assert os.listdir(_final(tmp_path)) == ['data']
  assert os.listdir(_final(tmp_path).parent) == ['1.0.0']


def test_what_is_replaced_stays_until_the_new_is_whole(tmp_path):
  final = _final(tmp_path)
  assert writer.write_whole(final, _write)

  def other(folder):
    assert os.listdir(final) == ['data']
    (folder / 'other').touch()

  def fails(folder):
    raise ValueError('no')

  with pytest.raises(ValueError, match='no'):
    writer.write_whole(final, fails, replace=True)
  assert os.listdir(final) == ['data']
  assert writer.write_whole(final, other, replace=True)
  assert os.listdir(final) == ['other']
  # Killed between the two renames: the next start finds the old data.
  final.rename(final.with_name('.1.0.0.12345678.replaced'))
  assert not writer.write_whole(final, fails)
  assert os.listdir(final) == ['other']
  assert os.listdir(final.parent) == ['1.0.0']


def test_too_little_room_is_told_before_writing(tmp_path, monkeypatch):
  usage = types.SimpleNamespace(free=10)
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage)
  image_files.write(tmp_path / 'in', _NAMES)
  with pytest.raises(UserError, match=r'no room in .* GB of images: choose'):
    _prepared(tmp_path)
  assert os.listdir(tmp_path / 'tfds') == []


def test_a_full_disk_or_no_directory_is_one_line(tmp_path):
  def full(folder):
    raise RuntimeError('write() failed\nmore')

  (tmp_path / 'file').touch()
  for root, said in (
      (tmp_path / 'tfds', 'write() failed'),
      (tmp_path / 'file' / 'tfds', 'Not a directory'),
  ):
    with pytest.raises(UserError) as caught:
      writer.write_whole(root / 'thing' / '1.0.0', full)
    assert str(caught.value).startswith(
        f'cannot write the data directory {root}: {said}; choose another with'
    )
  assert os.listdir(tmp_path / 'tfds') == []


def test_where_data_sets_are(monkeypatch, tmp_path):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  assert prepared.data_root('') == tmp_path
  monkeypatch.delenv('TFDS_DATA_DIR')
  monkeypatch.setenv('HOME', '/home/x')
  root = pathlib.Path('/home/x/tensorflow_datasets')
  assert prepared.data_root('') == root
  assert prepared.data_root('~/y') == pathlib.Path('/home/x/y')


def _found(root, content):
  (root / 'a').write_bytes(content)
  collection = Collection(root, ('a', 'b'), {})
  return inspection.inspect(collection, ImageFile('a', 0))


@pytest.mark.parametrize(
    'kind, mode',
    [
        ('JPEG', 'RGB'),
        ('JPEG', 'CMYK'),
        ('PNG', 'P'),
        ('TIFF', 'F'),
    ],
)
def test_findings_on_an_image(kind, mode, tmp_path):
  content = image_files.encoded(1, kind, mode)
  stored = (7, 5, mode, kind, False)
  digest = image_paths.digest(content)
  assert _found(tmp_path, content) == (digest, len(content), *stored)


def test_exif_is_seen(tmp_path):
  exif = PIL.Image.Exif()
  for value, turned in ((6, True), (0, False), (1, False), (9, False)):
    exif[0x0112] = value
    content = image_files.encoded(1, exif=exif.tobytes())
    # Sides are as stored.
    stored = (7, 5, 'RGB', 'JPEG', turned)
    assert _found(tmp_path, content)[2:] == stored


_KINDS = ('RGB', 'JPEG')


def _summarized(notes=('a note',), ignored=('.txt', '.txt'), **splits):
  """Summarizes splits of images, each given as (name, label, finding)."""
  good, rows, problems = {}, [], {}
  for split, found in splits.items():
    good[split] = []
    for name, label, finding in found:
      if isinstance(finding, str):
        problems[name] = finding
      else:
        good[split].append(ImageFile(name, label))
        rows.append(finding)
  collection = Collection('/x', ('a', 'b'), good, Counter(ignored))
  collection.ignored['hidden'] = 0
  collection.notes.extend(notes)
  table = np.array(rows, inspection.finding_type(collection.labels))
  return inspection.summarize(collection, table, problems)


def _made():
  return _summarized(
      train=[
          ('a/1.jpg', 0, (11, 100, 7, 5, 'RGB', 'JPEG', False)),
          ('a/2.jpg', 0, (12, 100, 9, 5, 'P', 'PNG', False)),
          ('a/3.jpg', 0, (11, 100, 7, 5, 'RGB', 'JPEG', False)),
          ('b/4.jpg', 1, (11, 100, 7, 5, 'RGB', 'MPO', True)),
          ('b/5.jpg', 1, 'is empty'),
      ],
      val=[
          ('a/6.webp', 0, (14, 100, 8, 5, 'RGB', 'WEBP', False)),
          ('a/7.webp', 0, (11, 100, 7, 5, 'RGB', 'WEBP', False)),
          ('a/8.webp', 0, (11, 100, 7, 5, 'RGB', 'WEBP', False)),
          ('a/9.webp', 0, (15, 100, 8, 5, 'RGB', 'WEBP', False)),
          ('a/10.webp', 0, (15, 100, 8, 5, 'RGB', 'WEBP', False)),
      ],
  )


def test_identical_pictures_within_and_across_splits():
  identical = _made()['identical']
  assert identical == {
      'extra': {'within train': 2, 'of val in train': 2, 'within val': 1},
      'of_several_classes': 1,
      'examples': [
          ['a/1.jpg', 'a/3.jpg', 'b/4.jpg', 'a/7.webp', 'a/8.webp'],
          ['a/9.webp', 'a/10.webp'],
      ],
      'examples_of_several_classes': [['a/1.jpg', 'b/4.jpg']],
  }


def test_lines():
  assert list(inspection.lines('pets', ClassLabels(), _made())) == [
      'pets: train 4, val 5 images of 2 classes (a, b)',
      '  of a class (fewest / median / most): train 1 / 1 / 3, val 0 / 0 / 5',
      '  warning: val has no image of b',
      '  formats: WEBP 5, JPEG 2, PNG 1, MPO 1; modes: RGB 8, P 1',
      '  width 7 / 7 / 9, height 5 / 5 / 5 (smallest / median / largest)',
      '  smallest a/1.jpg (7 x 5), largest a/2.jpg (9 x 5)',
      '  converted to RGB, the first of each mode: P a/2.jpg',
      '  left out: 1, the first b/5.jpg (is empty)',
      '  rotated by their EXIF: 1',
      '  byte for byte like another: within train 2, of val in train 2, '
      'within val 1, first a/1.jpg and a/3.jpg',
      '  the same bytes in several classes: 1 times, first a/1.jpg and b/4.jpg',
      '  skipped: .txt 2',
      '  a note',
  ]


def test_nothing_odd_nothing_said():
  good = [(f'{i}.jpg', i % 2, (i, 9, 7, 5, *_KINDS, False)) for i in range(4)]
  made = _summarized(notes=(), ignored=(), train=good)
  assert len(list(inspection.lines('x', ClassLabels(), made))) == 4


@pytest.mark.parametrize(
    'name, said',
    [
        (None, 'a NAME is needed'),
        ('2birds', 'lower-case letters'),
        ('birds\n', 'lower-case letters'),
        ('cifar10', 'is taken'),
    ],
)
def test_names_that_will_not(name, said):
  for good in ('birds', 'my_set_2', 'b'):
    writer.check_name(good, 'segmentation')
  with pytest.raises(UserError, match=said):
    writer.check_name(name, 'segmentation')
