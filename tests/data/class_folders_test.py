"""Tests class folders: what is found in them, records in place, cache."""

import os
import pathlib
import re
import unicodedata

import image_files
import numpy as np
import pytest

from gswinrmt_jax import files, recipes
from gswinrmt_jax.data import (
    batches,
    class_folders,
    datasets,
    image_paths,
    pictures,
)
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
        ('train_set', 'ValidSet', 'test-set'),
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
        (
            ('Cat', 'cat', 'dog'),
            "warning: the classes 'Cat' and 'cat' differ only in capital lett",
        ),
        (
            ('e\u0301', '\xe9'),
            r"classes 'e\\u0301' and '\\xe9' differ only in .* of accents",
        ),
    ],
)
def test_classes_that_look_like_others_are_warned_of(folders, said, tmp_path):
  found = class_folders.read(_write(tmp_path, *folders))
  assert re.search(said, '\n'.join(class_folders.report('x', found)))


def test_the_report_names_classes_sizes_and_what_was_skipped(tmp_path):
  names = [f'class{i:02}' for i in range(12)]
  _write(tmp_path, *names)
  for name in ('notes.txt', 'b.heic', 'bad.jpg'):
    (tmp_path / 'class03' / name).write_bytes(b'x')
  (tmp_path / 'loose.JPG').write_bytes(b'x')
  found = class_folders.read(tmp_path)
  assert list(class_folders.report('x', found)) == [
      'x: train 97, val 12, test 12 images of 12 classes (class00, class01, '
      'class02, class03, class04, class05, class06, class07, class08, class09, '
      '...)',
      '  of a class (fewest / median / most): train 8 / 8 / 9, val 1 / 1 / 1, '
      'test 1 / 1 / 1',
      '  width 7 / 7 / 7, height 5 / 5 / 5 (smallest / median / largest)',
      '  warning: damaged or no images: class03/bad.jpg',
      '  skipped: .jpg 1, .heic 1, .txt 1',
      f'  warning: images of {tmp_path} that are in no class folder are left '
      'out: loose.JPG',
      '  val and test are each a tenth of each class, held out at random (seed '
      '0)',
  ]


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


@pytest.mark.parametrize(
    ('folders', 'said'),
    [
        (('test/a', 'test/b'), 'has test/ but no train/'),
        (('a', 'b'), 'test would get nothing'),
    ],
)
def test_images_that_do_for_evaluation_alone(folders, said, tmp_path):
  """Those of test/, or too few to divide: none can have been trained on."""
  _write(tmp_path, *folders, count=3)
  name = str(tmp_path)
  with pytest.raises(UserError, match=said):
    datasets.own_splits(name)
  assert datasets.info(name).class_names == ('a', 'b')
  own = datasets.own_splits(name, train=False)
  assert own == {'train': '', 'val': '', 'test': 'test'}
  assert len(datasets.open_source(name, 'test')) == 6
  assert len(datasets.open_source(name, 'all')) == 6
  headline = datasets.describe(name)[0]
  assert headline.endswith(': test 6 images of 2 classes (a, b)')
  with pytest.raises(UserError, match="no split 'val', or it is empty: use t"):
    datasets.open_source(name, 'val')
  with pytest.raises(UserError, match=said):
    _recipe(name)


def test_a_train_too_small_to_divide_keeps_its_test(tmp_path):
  _write(tmp_path, 'train/a', 'train/b', count=3)
  _write(tmp_path, 'test/a', 'test/b', count=10)
  found = class_folders.read(tmp_path, train=False)
  assert [*map(len, found.splits.values())] == [6, 20]
  with pytest.raises(UserError, match='val would get nothing'):
    class_folders.read(tmp_path)


def test_a_train_too_small_to_divide_is_evaluated_whole_or_not(tmp_path):
  """Not the last tenth of it, which nobody asked for."""
  name = str(_write(tmp_path, 'train/a', 'train/b', count=3))
  own = datasets.own_splits(name, train=False)
  assert own == {'train': 'train', 'val': '', 'test': ''}
  assert len(datasets.open_source(name, 'train')) == 6


@pytest.mark.parametrize(('count', 'tested'), [(3, [3, 3, 0]), (20, [2, 2, 0])])
def test_a_class_without_images_does_for_evaluation(count, tested, tmp_path):
  _write(tmp_path, 'a', 'b', count=count)
  (tmp_path / 'c').mkdir()
  found = class_folders.read(tmp_path, train=False)
  assert found.class_names == ('a', 'b', 'c')
  assert found.counts('test') == tested
  said = {3: 'test would get nothing', 20: "class 'c' has no image to train"}
  with pytest.raises(UserError, match=said[count]):
    class_folders.read(tmp_path)


def test_folders_without_an_image_are_reported(tmp_path):
  for name in ('cat', 'dog'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'a.heic').touch()
  lines = datasets.describe(str(tmp_path))
  assert '  skipped: .heic 2' in lines
  with pytest.raises(UserError, match='left for train: look at the suffixes'):
    datasets.own_splits(str(tmp_path))
  with pytest.raises(UserError, match="no split 'test', or it is empty"):
    datasets.open_source(str(tmp_path), 'test')


def test_images_that_are_added_are_found(tmp_path):
  _write(tmp_path, 'train/a/day1', 'train/b', 'val/a', 'val/b')
  assert len(class_folders.read(tmp_path).images) == 40
  assert class_folders.read(tmp_path) is class_folders.read(tmp_path)
  for path, count in (('a/x.png', 41), ('b/day/1/y.png', 42)):
    image_files.write(tmp_path, [f'train/{path}'])
    assert len(class_folders.read(tmp_path).images) == count
  os.utime(tmp_path / 'train/a', (0, 0))  # A file system's clock may be coarse.
  assert len(class_folders.read(tmp_path).images) == 42
  (tmp_path / 'train/a/x.png').unlink()
  assert len(class_folders.read(tmp_path).images) == 41


@pytest.mark.parametrize('split', ['train', 'val'])
def test_a_copy_in_a_mac_spelling_has_the_same_order(split, tmp_path):
  read = []
  for form in ('NFC', 'NFD'):
    names = [unicodedata.normalize(form, each) for each in ('é', 'f')]
    root = _write(tmp_path / form, *names, count=20)
    source = datasets.open_source(str(root), split)
    keys = [source.key(row) for row in range(len(source))]
    read.append([list(map(image_paths.composed, keys)), *source.label])
  assert read[0] == read[1]


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
  for split in ('test', 'train[5:5]', 'train[0:9:2]', 'all[:75%]'):
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
    datasets.load('pets', 'train', task='segmentation')
  (tmp_path / 'pets/cat/0.jpg').write_bytes(b'x')
  with pytest.raises(UserError, match=r'pets/cat/0\.jpg is not an image'):
    for split in ('train', 'val', 'test'):
      datasets.load('pets', split, image_size=(8, 8))


def test_the_folder_may_have_a_name_that_is_not_utf8(tmp_path):
  root = _write(tmp_path / 'caf\udce9', 'train/a', 'train/b')
  (folder,) = datasets.open_source(str(root), 'train').cache_folders()
  assert folder.name.startswith('caf\udce9_')
  files.write_text(tmp_path / 'list.txt', f'{root}: damaged\n')
  assert r'caf\udce9: damaged' in (tmp_path / 'list.txt').read_text()


def test_the_cache_follows_the_files_and_is_not_among_them(
    tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  root = _write(tmp_path / 'pets', 'train/a', 'train/b', 'val/a')

  def opened():
    return datasets.open_source(str(root), 'train')

  (folder,) = opened().cache_folders()
  assert folder.is_relative_to(tmp_path / 'cache')
  path = root / opened().key(0)
  seen = [opened().fingerprint(), opened().fingerprint()]
  path.write_bytes(image_files.encoded(99))
  seen.append(opened().fingerprint())
  os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
  seen.append(opened().fingerprint())
  (root / 'train/a/more.jpg').write_bytes(image_files.encoded(5))
  seen.append(opened().fingerprint())
  assert seen[0] == seen[1] and len(set(seen)) == 4


def test_contents_are_those_of_images_and_all_labels(tmp_path):
  root = _write(tmp_path, 'train/a', 'train/b', 'val/a')
  source = datasets.open_source(str(root), 'train')
  before = source.content_checksum()
  source.label[7] = 1 - source.label[7]
  after = source.content_checksum()
  (root / source.key(7)).write_bytes(image_files.encoded(99))
  assert len({before, after, source.content_checksum()}) == 3


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
  assert (data.train_split, data.val_split) == ('train', 'test')
  assert data.test_split == 'x'
  # Splits that are given are taken, even if they are those of CIFAR-10.
  given = {'data.train_split': cifar[0], 'data.test_split': 'test'}
  data = _recipe('parts', **given)
  assert (data.train_split, data.test_split) == (cifar[0], 'test')
  data = _recipe('parts', **{'data.train_split': 'train[:50%]'})
  assert (data.train_split, data.val_split) == ('train[:50%]', 'val')


def _found(root):
  collection = class_folders.find(root)
  return {
      split: [(picture.file_name, picture.label) for picture in pictures]
      for split, pictures in collection.splits.items()
  }


def test_names_of_any_alphabet_by_code_point(tmp_path):
  names = ['Zebra', 'ape', 'Äffchen', 'кот', '猫', 'with space']
  image_files.write(tmp_path, image_files.names(*names, count=1))
  found = class_folders.find(tmp_path).class_names
  assert found == ('Zebra', 'ape', 'with space', 'Äffchen', 'кот', '猫')


def test_a_class_may_be_called_train(tmp_path):
  image_files.write(tmp_path, ('train/1.jpg', 'plane/1.jpg', 'test/1.jpg'))
  assert class_folders.find(tmp_path).class_names == ('plane', 'test', 'train')


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
  collection = class_folders.find(tmp_path)
  assert sum(map(len, collection.splits.values())) == 2
  assert {k: v for k, v in collection.ignored.items() if v} == {
      'hidden': 3,
      '.txt': 2,
      'without suffix': 1,
      '.jpg': 1,  # outside of the class folders
      '.csv': 1,
      'other folders': 1,
  }
  assert 'warning: extra/ beside train/ is left out' in collection.notes


def test_a_split_without_class_folders_is_named(tmp_path):
  image_files.write(tmp_path, ('train/a/1.jpg', 'train/b/1.jpg', 'val/1.jpg'))
  said = 'warning: val/ beside train/ is left out: it has no class folders'
  assert said in class_folders.find(tmp_path).notes


@pytest.mark.parametrize(
    'names, said',
    [
        (
            ['train/a/1.jpg', 'val/c/1.jpg'],
            "train lacks the class 'c' of val$",
        ),
        (
            ['train/red/1.jpg', 'train/b/1.jpg', 'val/Red/1.jpg'],
            r"lacks the class 'Red' of val \(did you mean red\?\)",
        ),
        (['train/1.jpg', 'val/2.jpg'], 'has train/, val/ without a folder for'),
        (
            ['train/a/1.jpg', 'valid/a/1.jpg', 'val/a/1.jpg'],
            'both val/ and valid/|both valid/ and val/',
        ),
        (['1.jpg'], 'has 0 class folders: two or more'),
        (['train/a/1.jpg', 'val/a/1.jpg'], 'has 1 class folder:'),
        (['x/a/1.jpg', 'x/b/1.jpg'], 'of one class; .*/x has 2$'),
    ],
)
def test_folders_that_will_not_do(names, said, tmp_path):
  image_files.write(tmp_path, names)
  with pytest.raises(UserError, match=said) as caught:
    class_folders.find(tmp_path)
  assert '\n' not in str(caught.value)


def test_classes_that_differ_between_splits_are_pooled_if_asked(tmp_path):
  image_files.write(tmp_path, ('train/b/1.jpg', 'val/a/1.jpg', 'val/b/1.jpg'))
  made = class_folders.find(tmp_path, pool=True)
  assert made.class_names == ('a', 'b') and list(made.splits) == ['']
  assert [(p.file_name, p.label) for p in made.images] == [
      ('train/b/1.jpg', 1),
      ('val/a/1.jpg', 0),
      ('val/b/1.jpg', 1),
  ]
  (tmp_path / 'val/a').rename(tmp_path / 'train/a')
  assert list(class_folders.find(tmp_path, pool=True).splits) == [
      'train',
      'val',
  ]


def test_links_are_followed_but_not_in_circles(tmp_path):
  image_files.write(tmp_path / 'other', ('1.jpg', '2.jpg'))
  image_files.write(tmp_path / 'set', ('a/1.jpg',))
  (tmp_path / 'set' / 'b').symlink_to(tmp_path / 'other')
  (tmp_path / 'set' / 'a' / 'gone.jpg').symlink_to(tmp_path / 'nowhere')
  (tmp_path / 'set' / 'a' / 'self.jpg').symlink_to('self.jpg')
  # Broken links are listed here; inspection reports them as damaged.
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
    class_folders.find(tmp_path / 'set')
  (tmp_path / 'set' / 'a' / 'loop').unlink()
  (tmp_path / 'set' / 'a' / 'up').symlink_to(tmp_path / 'set')
  with pytest.raises(UserError, match='a/up/a is a link to a folder that'):
    class_folders.find(tmp_path / 'set')


def test_the_links_of_docs_data_are_class_folders(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  image_files.write(tmp_path, ['images/1.jpg', 'images/2.jpg'])
  (tmp_path / 'labels.csv').write_text('image,label\n1.jpg,dog\n2.jpg,cat\n')
  page = pathlib.Path(__file__).parents[2] / 'docs' / 'data.md'
  (code,) = re.findall(r'```python\n(import csv.*?)```', page.read_text(), re.S)
  exec(code, {})
  found = _found(tmp_path / 'classes')
  assert found == {'': [('cat/2.jpg', 0), ('dog/1.jpg', 1)]}


def test_a_name_that_is_not_utf8(tmp_path):
  image_files.write(tmp_path, ('a/1.jpg', 'b/1.jpg'))
  hidden = os.fsencode(tmp_path / 'b') + b'/._\xff.jpg'
  open(hidden, 'wb').close()
  assert class_folders.find(tmp_path).ignored['hidden'] == 1
  os.rename(tmp_path / 'a/1.jpg', os.fsencode(tmp_path / 'a') + b'/\xff.jpg')
  with pytest.raises(UserError, match='not UTF-8'):
    class_folders.find(tmp_path)


def test_images_beside_train_are_warned_of(tmp_path):
  _write(tmp_path, 'train/a', 'train/b', count=20)
  (tmp_path / 'loose.png').touch()
  found = class_folders.read(tmp_path)
  said = f'images of {tmp_path} that are in no class folder are left out: loose'
  assert any(said in note for note in found.notes)
