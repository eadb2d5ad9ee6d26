"""Tests class folders that are read in place: splits, records, cache."""

import itertools
import os
import unicodedata

import image_files
import numpy as np
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.data import batches, class_folders, datasets, pictures
from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import data as data_lib


def _write(root, *folders, count=10):
  image_files.write(root, image_files.names(*folders, count=count))
  return root


@pytest.mark.parametrize(
    'train, val, test',
    [
        ('train', 'val', 'test'),
        ('Train', 'Val', 'TEST'),
        ('Training', 'validation', 'Testing'),
        ('train2017', 'val2017', 'test2017'),
        ('TRAIN_2012', 'Valid-2012', 'test 2012'),
    ],
)
def test_names_of_splits(train, val, test, tmp_path):
  parts = (train, val, test)
  _write(tmp_path, *(f'{part}/{name}' for part in parts for name in 'ab'))
  found = class_folders.find(tmp_path)
  assert found.class_names == ('a', 'b') and not found.notes
  assert list(found.splits) == ['train', 'val', 'test']
  for split, part in zip(found.splits, parts, strict=True):
    assert {i.file_name.split('/')[0] for i in found.splits[split]} == {part}


@pytest.mark.parametrize(
    'folders, said',
    [
        (
            ('Train', 'car'),
            "warning: the class 'Train' has the name of a split",
        ),
        (
            ('set 1/a', 'set 1/b', 'set 2/a', 'set 2/b'),
            r'all classes \(set 1, set 2\) have the same subfolders \(a, b\)',
        ),
    ],
)
def test_classes_that_look_like_splits_are_warned_of(folders, said, tmp_path):
  found = class_folders.read(_write(tmp_path, *folders))
  lines = '\n'.join(class_folders.report('x', found))
  with pytest.raises(AssertionError, match=said):
    raise AssertionError(lines)


def test_the_report_names_classes_sizes_and_what_was_skipped(tmp_path):
  names = [f'class{i:02}' for i in range(12)]
  _write(tmp_path, *names)
  for name in ('notes.txt', 'b.heic', 'bad.jpg'):
    (tmp_path / 'class03' / name).write_bytes(b'x')
  found = class_folders.read(tmp_path)
  assert list(class_folders.report('x', found)) == [
      'x: train 97, val 12, test 12 images of 12 classes (class00, class01, '
      'class02, class03, class04, class05, class06, class07, class08, class09, '
      '...)',
      '  of a class (fewest / median / most): train 8 / 8 / 9, val 1 / 1 / 1, '
      'test 1 / 1 / 1',
      '  width 7 / 7 / 7, height 5 / 5 / 5 (smallest / median / largest)',
      '  warning: damaged or no images: class03/bad.jpg',
      '  skipped: .heic 1, .txt 1',
      '  val and test are each a tenth of each class, held out at random (seed '
      '0)',
  ]


def test_held_out_images_are_those_of_prepared_sets(tmp_path):
  _write(tmp_path, 'a', 'b', count=30)
  found = class_folders.read(tmp_path)
  want = collections.divide(
      class_folders.find(tmp_path), {'val': 0.1, 'test': 0.1}, 0
  )
  assert found.splits == want.splits
  assert found.counts('val') == found.counts('test') == [3, 3]


def test_without_val_a_part_of_train_is_held_out(tmp_path):
  _write(tmp_path, 'train/a', 'train/b', 'test/a', count=20)
  found = class_folders.read(tmp_path)
  sizes = {split: found.counts(split) for split in found.splits}
  assert sizes == {'train': [18, 18], 'val': [2, 2], 'test': [20, 0]}
  assert len({image.file_name for image in found.images}) == 60
  assert datasets.own_splits(str(tmp_path)) == {
      'train': 'train', 'val': 'val', 'test': 'test',
  }  # fmt: skip
  few = _write(tmp_path / 'few', 'a', 'b')
  with pytest.raises(UserError, match='or divide them yourself, into train/'):
    class_folders.read(_write(few / 'fewer', 'a', 'b', count=3))


def test_one_class_in_two_spellings_is_refused(tmp_path):
  names = [unicodedata.normalize(form, 'é') for form in ('NFC', 'NFD')]
  _write(tmp_path, *names)
  with pytest.raises(UserError, match=r"\('e\\u0301', '\\xe9'\)"):
    class_folders.find(tmp_path)


def test_a_pipe_named_like_an_image_is_skipped(tmp_path):
  _write(tmp_path, 'a', 'b', '__MACOSX/a')
  os.mkfifo(tmp_path / 'a' / 'pipe.jpg')
  found = class_folders.find(tmp_path)
  assert found.class_names == ('a', 'b') and len(found.images) == 20
  assert found.ignored['not a regular file'] == 1


def test_records_are_the_files_in_a_mixed_order(tmp_path):
  _write(tmp_path, 'train/a', 'train/b', 'val/b', count=20)
  name = str(tmp_path)
  source = datasets.open_source(name, 'train')
  keys = [source.key(row) for row in range(40)]
  assert sorted(keys) == sorted(
      image_files.names('train/a', 'train/b', count=20)
  )
  for row, key in enumerate(keys):
    image, label = source[row]
    np.testing.assert_array_equal(image, pictures.read(tmp_path / key))
    assert label == source.label[row] == ('/b/' in key)
    assert source.name(row) == f'{tmp_path}/{key}'
    assert source.stored(row) == (tmp_path / key).read_bytes()
  first = datasets.open_source(name, 'train[:25%]')
  assert [first.key(row) for row in range(len(first))] == keys[:10]
  assert 0 < first.label.sum() < 10
  both = datasets.open_source(name, 'train[30:]+val')
  assert [both.key(row) for row in range(10)] == keys[30:] and len(both) == 30
  for split in ('test', 'train[5:5]', 'train[0:9:2]'):
    with pytest.raises(UserError, match=r'has no split .* use train or'):
      datasets.open_source(name, split)


def test_a_folder_is_a_data_set(tmp_path, monkeypatch):
  _write(tmp_path / 'pets', 'cat', 'dog')
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.chdir(tmp_path)
  for name in (str(tmp_path / 'pets'), '~/pets', 'pets', './pets'):
    info = datasets.info(name)
    assert info.name == 'pets' and info.class_names == ('cat', 'dog')
    assert info.task == 'classification' and info.image_size == (0, 0)
    assert datasets.folder_of(name) == tmp_path / 'pets'
  records = datasets.load('pets', 'val', image_size=(8, 9), storage='decode')
  (batch,) = batches.eval_batches(records, batch_size=2)
  assert batch['image'].shape == (2, 8, 9, 3) and batch['mask'].all()
  with pytest.raises(UserError, match=r'pets is a data set for classification'):
    datasets.load_segmentation('pets', 'train')
  (tmp_path / 'pets/cat/0.jpg').write_bytes(b'x')
  with pytest.raises(UserError, match=r'pets/cat/0\.jpg is not an image'):
    for split in ('train', 'val', 'test'):
      datasets.load('pets', split, image_size=(8, 8))


def test_the_cache_follows_the_folder(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  root = _write(tmp_path / 'pets', 'train/a', 'train/b', 'val/a')

  def load():
    return datasets.load(
        str(root), 'train', image_size=(5, 7), storage='disk'
    ).gather(np.arange(2))['image']

  def decoded():
    return 'Decoding' in capsys.readouterr().out

  first = load()
  assert decoded()
  np.testing.assert_array_equal(load(), first)
  assert not decoded() and sorted(os.listdir(root)) == ['train', 'val']
  path = root / datasets.open_source(str(root), 'train').key(0)
  before = path.stat()
  content = image_files.encoded(99)
  path.write_bytes(content)
  assert (load()[0] != first[0]).any() and decoded()
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
  load()
  assert decoded()
  (root / 'train/a/more.jpg').write_bytes(image_files.encoded(5))
  load()
  assert decoded()


def _recipe(name, **changes):
  config = recipes.cifar10('retention_compact')
  config.data.name = name
  config.update_from_flattened_dict(changes)
  return data_lib.with_own_splits(recipes.resolve(config)).data


def test_splits_come_from_the_data_set(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  _write(tmp_path / 'whole', 'a', 'b')
  _write(tmp_path / 'parts', 'Train/a', 'Train/b', 'valid/a')
  cifar = ('train[:45000]', 'train[45000:]')
  for name, want in (
      ('cifar10', (*cifar, 'test')),
      ('digits', ('train', 'val', 'test')),
      ('whole', ('train', 'val', 'test')),
      ('parts', ('train', 'val', '')),
  ):
    data = _recipe(name)
    assert (data.train_split, data.val_split, data.test_split) == want
  assert data.name == str(tmp_path / 'parts')
  assert _recipe('cifar10', **{'data.test_split': ''}).test_split == ''
  for name, test in (('parts', ''), ('whole', 'test')):
    own = {'data.train_split': 'train', 'data.val_split': 'val'}
    assert _recipe(name, **own).test_split == test
  data = _recipe('whole', **{'data.val_split': 'test', 'data.test_split': 'x'})
  assert (data.train_split, data.val_split) == ('train[:45000]', 'test')
  assert data.test_split == 'x'


def test_the_order_of_training_is_that_of_rows(tmp_path):
  """Images of class folders come as those of any other source."""
  root = _write(tmp_path, 'train/a', 'train/b', 'val/a')
  records = datasets.load(str(root), 'train', image_size=(4, 4))
  stream = batches.train_batches(records, batch_size=6, seed=3, start_step=2)
  other = batches.train_batches(
      datasets.load(str(root), 'train', image_size=(4, 4), storage='decode'),
      batch_size=6,
      seed=3,
      start_step=2,
  )
  for batch, same in itertools.islice(zip(stream, other, strict=True), 5):
    for name in ('image', 'label', 'row'):
      np.testing.assert_array_equal(batch[name], same[name])
    np.testing.assert_array_equal(
        batch['label'], records.label[batch['row']], strict=True
    )
