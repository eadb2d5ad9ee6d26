"""Which pictures are found, and under which label."""

import os

import image_files
import pytest

from gswinrmt_jax.data import image_folders, pictures
from gswinrmt_jax.errors import UserError


def _found(root):
  collection = image_folders.find(root)
  return {
      split: [(picture.file_name, picture.label) for picture in pictures]
      for split, pictures in collection.splits.items()
  }


def test_class_folders_are_undivided(tmp_path):
  image_files.write(tmp_path, ('b/2.PNG', 'b/deep/er/1.jpeg', 'a/x.webp'))
  assert _found(tmp_path) == {
      '': [('a/x.webp', 0), ('b/2.PNG', 1), ('b/deep/er/1.jpeg', 1)]
  }


def test_folders_of_splits(tmp_path):
  image_files.write(
      tmp_path, ('train/b/1.jpg', 'train/a/1.jpg', 'validation/b/1.jpg')
  )
  assert _found(tmp_path) == {
      'train': [('train/a/1.jpg', 0), ('train/b/1.jpg', 1)],
      'val': [('validation/b/1.jpg', 1)],
  }


def test_names_of_any_alphabet_by_code_point(tmp_path):
  names = ['Zebra', 'ape', 'Äffchen', 'кот', '猫', 'with space']
  image_files.write(tmp_path, image_files.names(*names, count=1))
  found = image_folders.find(tmp_path).class_names
  assert found == ('Zebra', 'ape', 'with space', 'Äffchen', 'кот', '猫')


def test_a_class_may_be_called_train(tmp_path):
  image_files.write(tmp_path, ('train/1.jpg', 'plane/1.jpg', 'test/1.jpg'))
  assert image_folders.find(tmp_path).class_names == ('plane', 'test', 'train')


def test_what_is_passed_over_is_counted(tmp_path):
  image_files.write(
      tmp_path,
      (
          'train/a/1.jpg',
          'train/a/.hidden.jpg',
          'train/a/notes.TXT',
          'train/a/README',
          'train/b/1.jpg',
          'train/b/.git/1.jpg',
          'train/stray.jpg',
          'train/list.csv',
          'classes.txt',
          '.DS_Store',
          'extra/b/1.jpg',
      ),
  )
  collection = image_folders.find(tmp_path)
  assert sum(map(len, collection.splits.values())) == 2
  assert {k: v for k, v in collection.ignored.items() if v} == {
      'hidden': 3,
      '.txt': 1,
      'without suffix': 1,
      'pictures outside class folders': 1,
      '.csv outside class folders': 1,
      '.txt outside class folders': 1,
      'folders beside train': 1,
  }


@pytest.mark.parametrize(
    'names, said',
    [
        (['train/a/1.jpg', 'train/b/x.txt'], r'train/b has no pictures'),
        (['train/a/1.jpg', 'val/c/1.jpg'], 'val/c: train has no such class'),
        (['val/a/1.jpg', 'test/b/1.jpg'], 'has test/, val/ but no train/'),
        (['train/1.jpg', 'val/2.jpg'], 'has train/, val/ but no train/ with'),
        (
            ['train/a/1.jpg', 'valid/a/1.jpg', 'val/a/1.jpg'],
            'both val/ and valid/|both valid/ and val/',
        ),
        (['1.jpg'], 'has no class folders'),
    ],
)
def test_folders_that_will_not_do(names, said, tmp_path):
  image_files.write(tmp_path, names)
  with pytest.raises(UserError, match=said) as caught:
    image_folders.find(tmp_path)
  assert '\n' not in str(caught.value)


def test_no_such_directory(tmp_path):
  with pytest.raises(UserError, match='is no directory'):
    image_folders.find(tmp_path / 'none')


def test_links_are_followed_but_not_in_circles(tmp_path):
  image_files.write(tmp_path / 'other', ('1.jpg', '2.jpg'))
  image_files.write(tmp_path / 'set', ('a/1.jpg',))
  (tmp_path / 'set' / 'b').symlink_to(tmp_path / 'other')
  (tmp_path / 'set' / 'a' / 'gone.jpg').symlink_to(tmp_path / 'nowhere')
  (tmp_path / 'set' / 'a' / 'self.jpg').symlink_to('self.jpg')
  # What leads nowhere will be found damaged.
  assert _found(tmp_path / 'set') == {
      '': [
          ('a/1.jpg', 0),
          ('a/gone.jpg', 0),
          ('a/self.jpg', 0),
          ('b/1.jpg', 1),
          ('b/2.jpg', 1),
      ]
  }
  (tmp_path / 'set' / 'a' / 'loop').symlink_to(tmp_path / 'set' / 'a')
  with pytest.raises(UserError, match='a/loop is a link to a folder that'):
    image_folders.find(tmp_path / 'set')
  (tmp_path / 'set' / 'a' / 'loop').unlink()
  (tmp_path / 'set' / 'a' / 'up').symlink_to(tmp_path / 'set')
  with pytest.raises(UserError, match='a/up/a is a link to a folder that'):
    image_folders.find(tmp_path / 'set')


def test_a_name_that_is_not_utf8(tmp_path):
  image_files.write(tmp_path, ('a/1.jpg', 'b/1.jpg'))
  os.rename(tmp_path / 'a/1.jpg', os.fsencode(tmp_path / 'a') + b'/\xff.jpg')
  with pytest.raises(UserError, match='not UTF-8'):
    image_folders.find(tmp_path)


def test_what_is_looked_for_can_be_read():
  assert set(image_folders.SUFFIXES.values()) == set(pictures.FORMATS)
