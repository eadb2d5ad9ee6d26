"""Tests collections of images: their division into splits, and checks."""

import hashlib

import image_files
import pytest

from gswinrmt_jax.data import class_folders
from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data.collection import Collection
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.errors import UserError


def _found_and_divided(root, val=None, test=None, seed=None):
  shares = {'val': val, 'test': test}
  return collections.divide(class_folders.find(root), shares, seed)


def test_splits_of_ones_own_stay(tmp_path):
  folders = ('train/a', 'train/b', 'val/a')
  image_files.write(tmp_path, image_files.names(*folders))
  made = _found_and_divided(tmp_path)
  assert list(made.splits) == ['train', 'val']
  for option in ('val', 'test', 'seed'):
    said = f'own splits, so --{option} has no effect'
    with pytest.raises(UserError, match=said):
      _found_and_divided(tmp_path, **{option: 0})


def _divided(counts, val, test, seed=0):
  pictures = [
      ImageFile(f'{label}/{i}', label)
      for label, count in enumerate(counts)
      for i in range(count)
  ]
  names = tuple(map(str, range(len(counts))))
  collection = Collection('/x', names, {'': pictures})
  return collections.divide(collection, {'val': val, 'test': test}, seed)


def test_every_class_gives_its_share_rounded():
  made = _divided((20, 15, 4, 5), 0.1, 0.2)
  assert made.counts('test') == [4, 3, 1, 1]  # 4, 3, 0.8, 1
  assert made.counts('val') == [2, 2, 0, 1]  # 2, 1.5, 0.4, 0.5
  assert made.counts('train') == [14, 10, 3, 3]
  together = [p for part in made.splits.values() for p in part]
  assert len(together) == len(set(together)) == 44
  assert made.source['seed'] == 0
  assert made.source['shares'] == {'val': 0.1, 'test': 0.2}


def test_order_is_that_of_the_hashes():
  made = _divided((10, 10), 0.2, 0.1, seed=7)
  ranked = sorted(
      (f'1/{i}' for i in range(10)),
      key=lambda name: hashlib.sha256(f'7:{name}'.encode()).hexdigest(),
  )
  of_one = {
      split: sorted(p.file_name for p in pictures if p.label == 1)
      for split, pictures in made.splits.items()
  }
  assert of_one == {
      'test': ranked[:1],
      'val': sorted(ranked[1:3]),
      'train': sorted(ranked[3:]),
  }


def test_no_share_no_split():
  assert list(_divided((9,), 0.2, 0).splits) == ['train', 'val']
  assert list(_divided((9,), 0, 0).splits) == ['train']


@pytest.mark.parametrize(
    'shares', [(0.5, 0.5), (-0.1, 0.2), (1, 0), (float('nan'), 0)]
)
def test_shares_that_will_not_do(shares):
  with pytest.raises(UserError, match=r'^--val=.* and --test=.* below 1$'):
    _divided((9, 9), *shares)


def test_a_class_that_leaves_train_nothing():
  said = r"class '1' has 2 images, .* for train: add some"
  with pytest.raises(UserError, match=f'{said}, or divide them yourself'):
    _divided((9, 2), 0.3, 0.3)


def test_a_split_that_gets_nothing():
  assert _divided((9, 5), 0.1, 0.1).counts('val') == [1, 1]
  assert _divided((5, 4), 0.1, 0.1).counts('val') == [1, 0]
  said = r'^val would get nothing, as 0\.1 of every class .*: add some'
  with pytest.raises(UserError, match=f'{said}, or divide them yourself'):
    _divided((4, 4), 0.1, 0.2)
  with pytest.raises(UserError, match=r'^test would get '):
    _divided((4, 4), 0.2, 0.1)


def _made(names=('a', 'b'), train=(0, 1), **splits):
  parts = {'train': train, **splits}
  return Collection(
      '/x',
      names,
      {
          split: [
              ImageFile(f'{split}/{i}', label) for i, label in enumerate(part)
          ]
          for split, part in parts.items()
      },
  )


@pytest.mark.parametrize(
    'arguments, said',
    [
        ({'names': (' a', 'b')}, "' a' has blanks"),
        ({'names': ('a', 'b\nc')}, 'line break'),
        ({'names': ('a', 'b\u2028c')}, 'line break'),
        ({'names': ('a', 'b\ud83d')}, r"'b\\ud83d' is not UTF-8"),
        (
            {'names': ('a', 'a')},
            "2 classes are named 'a'",
        ),
        ({'names': ('', 'a')}, 'a class has no name'),
        ({'train': (0, 0)}, "class 'b' has no image to train with"),
        ({'val': ()}, 'no image is left for val'),
    ],
)
def test_what_cannot_be_a_data_set(arguments, said):
  with pytest.raises(UserError, match=said):
    collections.check(_made(**arguments))


def test_the_order_of_records_is_what_it_always_was():
  """A slice of a split holds the images that it had in earlier versions."""
  files = [ImageFile(f'{k}/{i}.jpg', 0) for k in 'ab' for i in range(3)]
  files.sort(key=collections.rank)
  names = [file.file_name.removesuffix('.jpg') for file in files]
  assert names == ['b/1', 'a/2', 'a/1', 'b/0', 'a/0', 'b/2']
