import hashlib
from importlib import resources

import numpy as np
import pytest

from gswinrmt_jax.data import digits
from gswinrmt_jax.errors import UserError

SIZES = {'train': 1297, 'val': 200, 'test': 300}


def stored():
  path = resources.files('gswinrmt_jax.data') / 'digits.npz'
  with path.open('rb') as file, np.load(file) as data:
    return dict(data)


def test_file_is_small_and_holds_the_uci_arrays():
  path = resources.files('gswinrmt_jax.data') / 'digits.npz'
  assert len(path.read_bytes()) < 100_000
  data = stored()
  assert data['image'].shape == (1797, 8, 8)
  assert data['image'].min() == 0 and data['image'].max() == 16
  # Images a digit of scikit-learn's copy.
  counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
  assert np.bincount(data['label']).tolist() == counts
  content = b''.join(
      data[key].tobytes() for key in ('image', 'label', *digits.SPLITS)
  )
  assert hashlib.sha256(content).hexdigest() == (
      '53e667624c00cbd264a6ffdeba9b54ee8e06a8b1115729fa7e85bd657337cfcf'
  )


def test_splits_partition_the_images_and_are_stratified():
  data = stored()
  together = np.concatenate([data[split] for split in digits.SPLITS])
  assert sorted(together.tolist()) == list(range(1797))
  counts = np.bincount(data['label'])
  for split, size in SIZES.items():
    assert len(data[split]) == size
    found = np.bincount(data['label'][data[split]], minlength=10)
    assert np.abs(found - counts * size / 1797).max() < 1


def test_split_follows_from_its_seed_as_the_docstring_says():
  data = stored()
  expected = {split: [] for split in digits.SPLITS}
  left = np.bincount(data['label'])
  takes = {}
  for split in ('test', 'val'):
    exact = left * SIZES[split] / left.sum()
    take = np.floor(exact).astype(int)
    short = SIZES[split] - take.sum()
    take[np.argsort(take - exact, kind='stable')[:short]] += 1
    takes[split] = take
    left = left - take
  for digit in range(10):
    members = sorted(
        np.flatnonzero(data['label'] == digit).tolist(),
        key=lambda index: hashlib.sha256(f'0:{index}'.encode()).digest(),
    )
    for split, take in takes.items():
      expected[split] += members[: take[digit]]
      members = members[take[digit] :]
    expected['train'] += members
  for split in digits.SPLITS:
    assert data[split].tolist() == sorted(expected[split])


@pytest.mark.parametrize('split', digits.SPLITS)
def test_read_enlarges_and_scales_exactly(split):
  data = stored()
  image, label = digits.read(split)
  assert image.dtype == np.uint8 and label.dtype == np.int32
  assert image.shape == (SIZES[split], 32, 32, 3)
  # 255 v / 16, rounded by hand; 8 would be 127.5.
  table = [0, 16, 32, 48, 64, 80, 96, 112]
  table += [128, 143, 159, 175, 191, 207, 223, 239, 255]
  for row in (0, 7, len(label) - 1):
    index = data[split][row]
    assert label[row] == data['label'][index]
    for y, x in np.ndindex(32, 32):
      value = table[data['image'][index, y // 4, x // 4]]
      assert image[row, y, x].tolist() == [value] * 3


def test_mean_and_std_are_those_of_the_train_split():
  image, _ = digits.read('train')
  pixels = image / 255
  np.testing.assert_allclose(pixels.mean((0, 1, 2)), digits.MEAN, atol=5e-5)
  np.testing.assert_allclose(pixels.std((0, 1, 2)), digits.STD, atol=5e-5)


def test_unknown_split_is_refused():
  with pytest.raises(UserError, match=r"'train\[:9\]'.* train, val, test"):
    digits.read('train[:9]')


def test_licence_ships_beside_the_data():
  text = resources.files('gswinrmt_jax.data') / 'digits.LICENSE.txt'
  assert 'CC BY 4.0' in text.read_text()
