"""Tests preparing mini-ImageNet, cut to four classes, from each form."""

import image_files
import pytest

from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data import imagenet
from gswinrmt_jax.data.collection import Collection
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import imagenet as finder
from gswinrmt_jax.errors import UserError

_WNIDS = (*imagenet.wnids()[200:202], *imagenet.wnids()[10:12])
_SORTED = sorted(_WNIDS)
_OF_TWELVE = {'train': 10, 'val': 1, 'test': 1}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
  monkeypatch.setattr(finder, 'MINI_CLASSES', 4)
  monkeypatch.setattr(finder, 'MINI_IMAGES', 12)


def _lists(root, folder):
  """Writes the few-shot release: 2 classes for train, 1 for val, 1 for test."""
  for name, wnids in (
      ('train', _WNIDS[:2]),
      ('val', _WNIDS[2:3]),
      ('test', _WNIDS[3:]),
  ):
    rows = [(f'{wnid}{i:08d}.jpg', wnid) for wnid in wnids for i in range(12)]
    image_files.write(root, [f'{folder(w)}/{name}' for name, w in rows])
    text = ''.join(f'{file_name},{wnid}\n' for file_name, wnid in rows)
    (root / f'{name}.csv').write_text(f'filename,label\n{text}')


def _check(collection):
  for split, count in _OF_TWELVE.items():
    assert collection.counts(split) == [count] * 4
  names = dict(zip(imagenet.wnids(), imagenet.classes(), strict=True))
  assert collection.class_names == tuple(names[wnid] for wnid in _SORTED)
  for pictures in collection.splits.values():
    for picture in pictures:
      assert _SORTED[picture.label] in picture.file_name
  assert collection.source['seed'] == 5 and not collection.notes


@pytest.mark.parametrize(
    'folder', [lambda wnid: 'images', lambda wnid: f'some/{wnid}']
)
def test_lists_of_the_few_shot_release(folder, tmp_path):
  _lists(tmp_path, folder)
  image_files.write(tmp_path, ['images/not_listed.jpg'])
  _check(finder.find_mini(tmp_path, seed=5))


def test_lists_that_will_not_do(tmp_path):
  _lists(tmp_path, lambda wnid: 'images')
  (tmp_path / 'images' / f'{_WNIDS[0]}{3:08d}.jpg').unlink()
  with pytest.raises(UserError, match=r'^1 of the 48 .*00000003\.jpg$'):
    finder.find_mini(tmp_path)
  (tmp_path / 'val.csv').write_text('filename,label\na.jpg,n1\nb.jpg\n')
  with pytest.raises(UserError, match=r'val\.csv, line 3: not a file name and'):
    finder.find_mini(tmp_path)
  (tmp_path / 'val.csv').write_text('name;class\na.jpg;n1\n')
  with pytest.raises(UserError, match="has no column 'filename'"):
    finder.find_mini(tmp_path)
  (tmp_path / 'val.csv').unlink()
  with pytest.raises(UserError, match=r'No such file .*val\.csv'):
    finder.find_mini(tmp_path)


def _imagenet_folders(root):
  image_files.write(root, image_files.names(*_WNIDS, 'n01440764', count=12))


def _classes(tmp_path, wnids=_WNIDS):
  path = tmp_path / 'classes.txt'
  path.write_text('\n'.join(f'{wnid} some, words' for wnid in wnids) + '\n\n')
  return path


@pytest.mark.parametrize('below', ['', 'train'])
def test_from_imagenet(below, tmp_path):
  _imagenet_folders(tmp_path / 'in' / below)
  _check(finder.find_mini(tmp_path / 'in', classes=_classes(tmp_path), seed=5))


def test_classes_that_will_not_do(tmp_path):
  _imagenet_folders(tmp_path)
  with pytest.raises(UserError, match=r'1 of 4 .* first n00000001'):
    finder.find_mini(
        tmp_path, classes=_classes(tmp_path, (*_WNIDS[1:], 'n00000001'))
    )
  with pytest.raises(UserError, match='has 3 classes, mini-ImageNet has 4'):
    finder.find_mini(tmp_path, classes=_classes(tmp_path, _WNIDS[1:]))
  with pytest.raises(UserError, match=r'--classes .*none cannot be read'):
    finder.find_mini(tmp_path, classes=tmp_path / 'none')


@pytest.mark.parametrize(
    'parts',
    [
        ('', '', '', ''),
        ('train/', 'train/', 'train/', 'train/'),
        ('train/', 'train/', 'val/', 'test/'),
    ],
)
def test_class_folders_are_pooled(parts, tmp_path):
  folders = [part + wnid for part, wnid in zip(parts, _WNIDS, strict=True)]
  image_files.write(tmp_path, image_files.names(*folders, count=12))
  _check(finder.find_mini(tmp_path, seed=5))


def test_splits_by_image_stay(tmp_path):
  image_files.write(
      tmp_path,
      [
          *image_files.names(*(f'train/{w}' for w in _WNIDS), count=3),
          *image_files.names(*(f'test/{w}' for w in _WNIDS), count=2),
      ],
  )
  made = finder.find_mini(tmp_path)
  assert {s: made.counts(s) for s in made.splits} == {
      'train': [3] * 4,
      'test': [2] * 4,
  }
  with pytest.raises(UserError, match='--seed has no effect'):
    finder.find_mini(tmp_path, seed=0)


def test_another_number_of_images_is_said(tmp_path):
  image_files.write(
      tmp_path,
      [
          *image_files.names(*_WNIDS[:3], count=12),
          *image_files.names(_WNIDS[3], count=24),
      ],
  )
  made = finder.find_mini(tmp_path)
  (note,) = made.notes
  assert note.startswith('some classes have 24 to 24 images, not 12')
  assert sorted(made.counts('test')) == [1, 1, 1, 2]
  assert sorted(made.counts('train')) == [10, 10, 10, 20]


def test_shares_are_500_50_50():
  for count, expected in ((600, (500, 50, 50)), (1300, (1084, 108, 108))):
    pictures = [ImageFile(f'{i}.jpg', i % 2) for i in range(2 * count)]
    made = collections.divide(
        Collection('/x', ('a', 'b'), {'': pictures}),
        finder.MINI_SHARES,
        0,
    )
    for split, number in zip(('train', 'val', 'test'), expected, strict=True):
      assert made.counts(split) == [number] * 2
