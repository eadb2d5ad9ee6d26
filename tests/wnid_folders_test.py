from collections import Counter

import image_files
import pytest

from gswinrmt_jax.data import wnid_folders
from gswinrmt_jax.errors import UserError


def test_wanted_classes_among_others(tmp_path):
  image_files.write(
      tmp_path / 'in', image_files.names('n00000003', 'n00000001', 'notes')
  )
  image_files.write(tmp_path / 'in', ['.hidden', 'list.csv', 'README'])
  content = image_files.tar({'x.JPEG': image_files.encoded(1)})
  (tmp_path / 'in' / 'n00000002.tar').write_bytes(content)
  (tmp_path / 'in' / 'n00000004.tar').write_bytes(b'is not looked at')
  (tmp_path / 'in' / 'n00000005').mkdir()
  ignored = Counter()
  found, unwanted = wnid_folders.find(
      tmp_path, 'in', {'n00000002': 0, 'n00000003': 1}, ignored, 'set'
  )
  assert [(p.file_name, p.label) for p in found] == [
      ('in/n00000002.tar/x.JPEG', 0),
      ('in/n00000003/0.jpg', 1),
      ('in/n00000003/1.jpg', 1),
      ('in/n00000003/2.jpg', 1),
  ]
  assert unwanted == ['n00000001', 'n00000004', 'n00000005']
  assert {k: v for k, v in ignored.items() if v} == {
      'hidden': 1,
      'folders without a WordNet identifier': 1,
      '.csv outside class folders': 1,
      'files outside class folders': 1,
  }


def test_where_classes_are(tmp_path):
  assert not wnid_folders.is_there(tmp_path, 'in')
  image_files.write(tmp_path, image_files.names('in/dogs'))
  assert not wnid_folders.is_there(tmp_path, 'in')
  (tmp_path / 'in' / 'n00000001.tar').touch()
  assert wnid_folders.is_there(tmp_path, 'in')


def _find(root, below):
  labels = {'n00000001': 0, 'n00000002': 1}
  return wnid_folders.find(root, below, labels, Counter(), 'set')


def test_a_class_that_is_there_twice(tmp_path):
  content = image_files.tar({'x.JPEG': image_files.encoded(1)})
  image_files.write(tmp_path, image_files.names('in/n00000001', 'in/n00000002'))
  assert len(_find(tmp_path, 'in')[0]) == 6
  (tmp_path / 'in' / 'n00000002.tar').write_bytes(content)
  with pytest.raises(UserError, match='the class n00000002 twice, as a fold'):
    _find(tmp_path, 'in')
  (tmp_path / 'all.tar').write_bytes(
      image_files.tar({'n00000001.tar': content, 'b/n00000001.tar': content})
  )
  with pytest.raises(UserError, match='the class n00000001 twice'):
    _find(tmp_path, 'all.tar')
