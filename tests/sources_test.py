"""Records as they are stored."""

import hashlib
import os
import types

import folder_data
import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.data import pictures, sources, tfds_sets
from gswinrmt_jax.errors import UserError


def _open(root, examples, split='train'):
  folder_data.write(root, {'train': examples})
  return tfds_sets.open_split('own', split, str(root))


def test_every_record_is_the_file_as_it_was(tmp_path):
  examples = folder_data.examples(7)
  grey = PIL.Image.new('L', (5, 4), 77)
  grey.save(tmp_path / 'grey.png')
  examples.append(('b/grey.png', (tmp_path / 'grey.png').read_bytes(), 1))
  source = _open(tmp_path, examples)
  assert len(source) == 8
  found = {
      source.name(row): (picture, label)
      for row, (picture, label) in enumerate(source.read(range(8)))
  }
  assert len(found) == 8
  for file_name, encoded, label in examples:
    (name,) = (name for name in found if f'({file_name})' in name)
    want = pictures.decode(encoded, '')
    np.testing.assert_array_equal(found[name][0], want)
    assert found[name][1] == label


def test_rows_come_as_asked(tmp_path):
  source = _open(tmp_path, folder_data.examples(6))
  every = [label for _, label in source.read(range(6))]
  rows = np.array([4, 0, 4])
  assert [label for _, label in source.read(rows)] == [every[r] for r in rows]


def test_damage_and_a_missing_label_are_named(tmp_path):
  examples = folder_data.examples(3)
  examples[1] = ('bee/bad.jpg', examples[1][1][:200], 1)
  source = _open(tmp_path, examples)
  with pytest.raises(UserError, match=r"own: record \d of 'train' \(bee/bad"):
    list(source.read(range(3)))


def test_no_label_is_named(tmp_path):
  examples = folder_data.examples(3)
  examples[1] = (*examples[1][:2], -1)
  source = _open(tmp_path, examples)
  with pytest.raises(UserError, match=r'0_1\.jpg\) has no label: it says -1'):
    list(source.read(range(3)))


def test_fingerprint_changes_with_split_and_files(tmp_path):
  examples = folder_data.examples(6)
  first = _open(tmp_path, examples).fingerprint()
  assert (
      first == tfds_sets.open_split('own', 'train', str(tmp_path)).fingerprint()
  )
  part = tfds_sets.open_split('own', 'train[:4]', str(tmp_path)).fingerprint()
  (shard,) = (tmp_path / 'own' / '1.0.0').glob('*array_record*')
  os.utime(shard, (1, 1))
  again = tfds_sets.open_split('own', 'train', str(tmp_path)).fingerprint()
  assert len({first, part, again}) == 3


def test_records_are_told_apart_by_name_id_or_bytes():
  class Builder:
    name = 'own'
    data_path = 'own/1.0.0'
    info = types.SimpleNamespace(
        features={'label': types.SimpleNamespace(num_classes=1)},
        version='1.0.0',
    )
    records = (
        {'file_name': b'a.png', 'id': b'7', 'image': b'1'},
        {'id': b'8', 'image': b'2'},
        {'id': 9, 'image': b'3'},
        {'image': b'4'},
    )

    def as_data_source(self, split, decoders):
      records = self.records

      class Source(list):

        def __getitems__(self, rows):
          return [records[row] for row in rows]

      return Source(records)

  source = sources.TfdsSource(Builder(), 'train', '')
  hashes = [hashlib.sha256(data).hexdigest() for data in (b'4', b'3')]
  assert source.keys([3, 1, 0, 2]) == [hashes[0], '8', 'a.png', hashes[1]]


def test_arrays_are_a_source_too():
  image = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
  source = sources.ArraySource(image, np.array([3, 1], np.int32))
  ((picture, label),) = source.read([1])
  np.testing.assert_array_equal(picture, image[1])
  assert label == 1 and source.name(1) == 'record 1' and len(source) == 2
  digest = hashlib.sha256(bytes(range(60, 120))).hexdigest()
  assert source.keys([1]) == [digest]


def test_few_records_are_held_encoded(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, '_FETCHED', 3)
  source = _open(tmp_path, folder_data.examples(8))
  every, asked = source._records, []

  class Records:

    def __getitems__(self, rows):
      asked.append(list(rows))
      return every.__getitems__(rows)

  source._records = Records()
  rows = [7, 0, 1, 2, 3, 4, 6]
  found = source.read(rows)
  next(found)
  assert asked == [[7, 0, 1]]
  assert len(list(found)) == 6
  assert asked == [[7, 0, 1], [2, 3, 4], [6]]
  assert len(set(source.keys(rows))) == 7


def test_a_file_name_that_is_not_utf8(tmp_path, monkeypatch):
  source = _open(tmp_path, folder_data.examples(2))
  every = source._records.__getitems__([0, 1])
  monkeypatch.setattr(source, '_records', _renamed(every, b'a/\xff.jpg'))
  assert source.name(0) == "own: record 0 of 'train' (a/\\xff.jpg)"
  assert source.keys([0, 1]) == ['a/\\xff.jpg'] * 2


def _renamed(records, file_name):
  class Records:

    def __getitems__(self, rows):
      return [{**records[row], 'file_name': file_name} for row in rows]

  return Records()


def test_a_source_has_a_version(tmp_path):
  assert _open(tmp_path, folder_data.examples(1)).version == '1.0.0'
