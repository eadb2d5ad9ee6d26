"""From pictures to a TFDS data set, byte for byte."""

import json
import os

import image_files
import numpy as np
import pytest
import tensorflow_datasets as tfds

from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data import (
    folder_builder,
    image_folders,
    image_report,
    inspect_images,
)
from gswinrmt_jax.errors import UserError

_NAMES = [
    *image_files.names('train/кот', 'train/dog', count=10),
    'val/dog/0.jpg',
    'val/кот/picture one.jpg',
]


def _prepared(tmp_path, **options):
  return folder_builder.prepare(
      'pets',
      lambda: image_folders.find(tmp_path / 'in'),
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
  # Unmodified TFDS decodes what has three channels by itself.
  image = next(iter(builder.as_data_source('val')))['image']
  assert image.shape == (5, 7, 3) and image.dtype == np.uint8
  report = json.loads((final / 'report.json').read_text('utf-8'))
  assert report['splits']['train']['by_class'] == [12, 10]
  out, err = capfd.readouterr()
  assert 'pets: train 22, val 2 pictures of 2 classes' in out
  assert out.endswith(f'pets: prepared {final}\n') and not err


def test_slices_are_mixed_samples(tmp_path):
  image_files.write(tmp_path / 'in', image_files.names('a', 'b', 'c', count=20))
  collection = image_folders.find(tmp_path / 'in')
  collection.splits = {'train': collection.splits['']}
  final = folder_builder.prepare(
      'three', lambda: collection, data_dir=str(tmp_path / 'tfds')
  )
  labels = [label for _, label in _records(final, 'train[:50%]').values()]
  assert len(labels) == 30 and min(np.bincount(labels, minlength=3)) >= 5


def test_shards_by_size(tmp_path, monkeypatch):
  contents = image_files.write(tmp_path / 'in', _NAMES)
  size = sum(map(len, contents.values())) // len(contents)
  monkeypatch.setattr(folder_builder, '_SHARD_BYTES', 6 * size)
  final = _prepared(tmp_path)
  info = tfds.builder_from_directory(final).info.splits['train']
  assert info.num_shards == 4  # 20 pictures, 6 at most in each
  assert len(_records(final, 'train')) == 20


def test_second_call_says_so(tmp_path, capsys):
  image_files.write(tmp_path / 'in', _NAMES)
  final = _prepared(tmp_path)
  capsys.readouterr()
  assert (
      folder_builder.prepare('pets', None, data_dir=str(tmp_path / 'tfds'))
      == final
  )
  assert capsys.readouterr().out == (
      f'pets: already prepared in {final}, nothing done\n'
  )


def _damage(tmp_path):
  image_files.write(tmp_path / 'in', _NAMES)
  (tmp_path / 'in/train/dog/3.jpg').write_bytes(b'')
  (tmp_path / 'in/train/кот/4.jpg').write_bytes(image_files.encoded(1)[:-30])
  (tmp_path / 'in/train/кот/none.jpg').symlink_to('nowhere')


def test_damaged_pictures_stop_it_once_all_are_known(tmp_path):
  _damage(tmp_path)
  with pytest.raises(UserError) as caught:
    _prepared(tmp_path, jobs=2)
  message = str(caught.value)
  assert message.startswith(
      '3 of 23 pictures cannot be used, the first train/dog/3.jpg (is empty)'
  )
  assert '--on-error=skip' in message and '\n' not in message
  hidden = tmp_path / 'tfds' / '.pets-preparing' / 'keep'
  assert os.listdir(tmp_path / 'tfds') == ['.pets-preparing']
  lines = (hidden / 'damaged.txt').read_text('utf-8').splitlines()
  assert [line.split('\t')[0] for line in lines] == [
      'train/dog/3.jpg',
      'train/кот/4.jpg',
      'train/кот/none.jpg',
  ]
  assert str(hidden / 'damaged.txt') in message


def test_damaged_pictures_left_out(tmp_path, capsys):
  _damage(tmp_path)
  with pytest.raises(UserError):
    _prepared(tmp_path)
  final = _prepared(tmp_path, skip_damaged=True)
  out = capsys.readouterr().out
  # Two of the three: what could not be read is looked at again.
  assert '22 pictures were looked at by an earlier run' in out
  assert 'left out as damaged: 3' in out
  assert len(_records(final, 'train')) == 18
  assert os.listdir(tmp_path / 'tfds') == ['pets']
  report = json.loads((final / 'report.json').read_text('utf-8'))
  assert report['damaged'][0] == {
      'file_name': 'train/dog/3.jpg',
      'problem': 'is empty',
  }
  assert report['decoded_now'] == 1


def test_a_class_without_a_whole_picture(tmp_path):
  image_files.write(tmp_path / 'in', ['train/a/1.jpg', 'train/b/1.jpg'])
  (tmp_path / 'in/train/b/1.jpg').write_bytes(b'x')
  with pytest.raises(UserError, match="class 'b' has no picture"):
    _prepared(tmp_path, skip_damaged=True)


@pytest.mark.parametrize('gone', [False, True])
def test_a_file_that_changes_under_way(gone, tmp_path, monkeypatch):
  image_files.write(tmp_path / 'in', _NAMES)
  path = tmp_path / 'in/train/dog/3.jpg'

  def change(*_):
    path.unlink() if gone else path.write_bytes(image_files.encoded(99))
    return []

  monkeypatch.setattr(image_report, 'lines', change)
  said = ': No such file' if gone else ' has changed since'
  with pytest.raises(UserError, match=f'^{path}{said}'):
    _prepared(tmp_path)
  assert os.listdir(tmp_path / 'tfds') == ['.pets-preparing']


@pytest.mark.parametrize('place', ['check', 'write'])
def test_interruption_leaves_nothing_visible(place, tmp_path, monkeypatch):
  image_files.write(tmp_path / 'in', _NAMES)
  calls = []

  def interrupted(*arguments):
    calls.append(arguments)
    if len(calls) == 5:
      raise KeyboardInterrupt
    return before(*arguments)

  module, name = {
      'check': (inspect_images, 'inspect'),
      'write': (collections, 'read'),
  }[place]
  before = getattr(module, name)
  with monkeypatch.context() as patch:
    patch.setattr(module, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
      _prepared(tmp_path)
  left = tmp_path / 'tfds' / '.pets-preparing'
  assert os.listdir(left.parent) == [left.name]
  assert os.listdir(left) == ['keep']
  assert len(_records(_prepared(tmp_path), 'train')) == 20
  assert os.listdir(left.parent) == ['pets']
