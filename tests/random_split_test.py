import hashlib

import pytest

from gswinrmt_jax.data import random_split
from gswinrmt_jax.data.collection import Collection, Picture
from gswinrmt_jax.errors import UserError


def _divided(counts, val, test, seed=0, **how):
  pictures = [
      Picture(f'{label}/{i}', label)
      for label, count in enumerate(counts)
      for i in range(count)
  ]
  names = tuple(map(str, range(len(counts))))
  collection = Collection('/x', names, {'': pictures})
  return random_split.by_share(
      collection, {'val': val, 'test': test}, seed, **how
  )


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


def test_seed_decides():
  first, same = _divided((50,), 0.2, 0.2, 3), _divided((50,), 0.2, 0.2, 3)
  other = _divided((50,), 0.2, 0.2, 4)
  assert first.splits == same.splits
  assert first.splits['test'] != other.splits['test']


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
  said = r"class '1' has 2 pictures, .* for train: add some"
  with pytest.raises(UserError, match=f'{said}, or lower --val and --test$'):
    _divided((9, 2), 0.3, 0.3)
  with pytest.raises(UserError, match=f'{said}$'):
    _divided((9, 2), 0.3, 0.3, options=False)


def test_a_split_that_gets_nothing():
  assert _divided((9, 5), 0.1, 0.1).counts('val') == [1, 1]
  assert _divided((5, 4), 0.1, 0.1).counts('val') == [1, 0]
  said = r'^val would get nothing, as 0\.1 of every class .*: add some'
  with pytest.raises(UserError, match=f'{said}, or raise --val, or set it to'):
    _divided((4, 4), 0.1, 0.2)
  with pytest.raises(UserError, match=f'{said}$'):
    _divided((4, 4), 0.1, 0.2, options=False)
  with pytest.raises(UserError, match=r'^test would get .* raise --test'):
    _divided((4, 4), 0.2, 0.1)
