import os

import cifar10_test
import folder_data
import numpy as np
import pytest

from gswinrmt_jax.data import (
    cifar10_archive,
    datasets,
    digits,
    prepared,
    records,
)
from gswinrmt_jax.errors import UserError


@pytest.fixture
def root(monkeypatch, tmp_path):
  monkeypatch.setattr(
      cifar10_archive, 'IMAGES_PER_CLASS', cifar10_test.PER_CLASS
  )
  cifar10_test.prepared(tmp_path)
  return tmp_path / 'tfds'


@pytest.fixture(scope='module')
def own(tmp_path_factory):
  root = tmp_path_factory.mktemp('own')
  folder_data.write(
      root,
      {
          'train': folder_data.examples(8),
          'val': folder_data.examples(5, seed=1),
      },
  )
  return root


def test_info_of_every_data_set():
  assert datasets.NAMES == ('digits', 'cifar10')
  for name in datasets.NAMES:
    info = datasets.info(name)
    assert info.name == name
    assert len(info.class_names) == len(info.mean) + 7 == len(info.std) + 7
  assert datasets.info('digits').class_names[7] == '7'
  assert datasets.info('cifar10').class_names[7] == 'horse'
  # The figures of the original train split, as commonly quoted.
  assert datasets.info('cifar10').mean == (0.4914, 0.4822, 0.4465)
  assert datasets.info('cifar10').std == (0.2470, 0.2435, 0.2616)


def test_an_unknown_name_gets_the_nearest_and_all_that_there_are(own):
  with pytest.raises(UserError, match="'cifar-10'; did you mean cifar10"):
    datasets.info('cifar-10', str(own))
  with pytest.raises(UserError) as caught:
    datasets.load('xyz', 'train', str(own))
  assert str(caught.value) == (
      f"unknown data set 'xyz' (built in: digits, cifar10; in {own}: own)"
  )
  with pytest.raises(UserError, match='did you mean own'):
    datasets.ensure('onw', str(own))
  with pytest.raises(UserError, match='in /nowhere: none'):
    datasets.info('own', '/nowhere')
  with pytest.raises(UserError, match='imagenet is not prepared in /nowhere'):
    datasets.ensure('imagenet', '/nowhere')
  with pytest.raises(UserError, match=r"unknown data set '\.\./own'"):
    datasets.info('../own', str(own))


def test_a_data_set_of_ones_own(own):
  info = datasets.info('own', str(own))
  assert info.name == 'own' and info.class_names == folder_data.CLASSES
  assert info.mean == (0.485, 0.456, 0.406)
  assert info.image_size == (0, 0)  # not known before they are read
  datasets.ensure('own', str(own))
  train = datasets.load('own', 'train', str(own), image_size=(9, 7))
  assert len(train) == 8 and train.image_shape == (9, 7, 3)
  parts = [
      datasets.load('own', split, str(own), image_size=(9, 7))
      for split in ('train[:3]', 'train[3:]')
  ]
  image = np.concatenate([part.image for part in parts])
  np.testing.assert_array_equal(image, train.image)
  with pytest.raises(
      UserError, match="has no split 'test', or it is empty: use train or v"
  ):
    datasets.load('own', 'test', str(own), image_size=(9, 7))


def test_storages_hold_the_same(own):
  loaded = [
      datasets.load(
          'own', 'train', str(own), image_size=(8, 8), crop=0.9, storage=storage
      )
      for storage in datasets.STORAGES
  ]
  assert len(loaded) == 3
  want = loaded[0].gather(np.arange(8))
  for records_ in loaded:
    assert len(records_) == 8 and records_.image_shape == (8, 8, 3)
    for rows in ([3, 1, 3], [7]):
      batch = records_.gather(np.array(rows))
      for name in ('image', 'label'):
        np.testing.assert_array_equal(batch[name], want[name][rows])
        assert batch[name].dtype == want[name].dtype


def test_an_unknown_storage_is_refused(own):
  with pytest.raises(UserError, match="unknown storage 'ram': must be one of"):
    datasets.load('own', 'train', str(own), storage='ram')


def test_opening_prepares_nothing_and_opens_once(own, monkeypatch):
  monkeypatch.setattr(datasets, 'prepare', lambda *args: 1 / 0)
  opened, open_prepared = [], prepared.open_prepared
  monkeypatch.setattr(
      prepared,
      'open_prepared',
      lambda *args, **how: opened.append(args) or open_prepared(*args, **how),
  )
  assert len(datasets.open_source('own', 'train', str(own))) == 8
  assert len(opened) == 1
  for name in ('xyz', 'cifar10', 'imagenet'):
    with pytest.raises(UserError):
      datasets.open_source(name, 'train', str(own))


def test_digits_need_no_preparation(capsys):
  datasets.ensure('digits')
  assert capsys.readouterr().out == ''
  arrays = datasets.load('digits', 'val', '/no/such/directory')
  image, label = digits.read('val')
  assert len(arrays) == 200
  np.testing.assert_array_equal(arrays.image, image)
  np.testing.assert_array_equal(arrays.label, label)


def test_cifar10_is_decoded_to_arrays(root, monkeypatch):
  monkeypatch.setattr(records, '_CHUNK', 7)  # does not divide 50
  parts = [
      datasets.load('cifar10', split, str(root))
      for split in ('train[:35]', 'train[35:]', 'test')
  ]
  assert [len(part) for part in parts] == [35, 15, 20]
  for part in parts:
    assert part.image.dtype == np.uint8 and part.label.dtype == np.int32
    assert part.image.shape == (len(part), 32, 32, 3)
  for split, chosen in (('train', parts[:2]), ('test', parts[2:])):
    found = {
        image.tobytes(): label
        for part in chosen
        for image, label in zip(part.image, part.label, strict=True)
    }
    images, labels = cifar10_test.tiny_records()[split]
    assert found == {
        image.tobytes(): label
        for image, label in zip(images, labels, strict=True)
    }


@pytest.mark.parametrize(
    'split', ['valid', 'train[', 'train[0:9:2]', 'train[50:]', 'train[:99]', '']
)
def test_bad_split_is_one_line(split, root):
  with pytest.raises(UserError) as caught:
    datasets.load('cifar10', split, str(root))
  message = str(caught.value)
  assert f'no split {split!r}' in message and '\n' not in message


def test_missing_data_are_named(tmp_path):
  assert not datasets.is_prepared('cifar10', str(tmp_path))
  with pytest.raises(UserError) as caught:
    datasets.load('cifar10', 'train', str(tmp_path))
  assert str(tmp_path / 'cifar10/3.0.2') in str(caught.value)
  assert 'gswinrmt prepare cifar10' in str(caught.value)


@pytest.mark.parametrize('damage', ['cut', 'empty', 'overwritten'])
def test_damaged_shard_is_named(damage, root):
  final = root / 'cifar10' / '3.0.2'
  shard = final / 'cifar10-train.array_record-00000-of-00001'
  size = shard.stat().st_size
  if damage == 'overwritten':
    with shard.open('r+b') as file:
      file.seek(size // 4)
      file.write(b'x' * (size // 4))
  else:
    os.truncate(shard, size // 2 if damage == 'cut' else 0)
  with pytest.raises(UserError) as caught:
    datasets.load('cifar10', 'train', str(root))
  message = str(caught.value)
  assert message.startswith(f'{final} is damaged') and '\n' not in message


def test_ensure_prepares_only_what_is_missing(root, monkeypatch, capsys):
  capsys.readouterr()
  datasets.ensure('cifar10', str(root))
  assert capsys.readouterr().out == ''
  asked = []
  monkeypatch.setattr(
      datasets, 'prepare', lambda name, data_dir: asked.append((name, data_dir))
  )
  datasets.ensure('cifar10', str(root / 'other'))
  assert asked == [('cifar10', str(root / 'other'))]
