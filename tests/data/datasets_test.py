"""Tests data sets by name, their TFDS metadata, and their stored records."""

import hashlib
from importlib import resources
import json
import os
import shutil
import types
from unittest import mock

import cifar10_archives
import folder_data
import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from gswinrmt_jax import recipes
from gswinrmt_jax.data import (
    datasets,
    digits,
    imagenet,
    pictures,
    prepared,
    sources,
)
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.errors import UserError


@pytest.fixture
def root(monkeypatch, tmp_path):
  monkeypatch.setattr(cifar10, 'IMAGES_PER_CLASS', cifar10_archives.PER_CLASS)
  archive = cifar10_archives.binary_archive(tmp_path)
  cifar10.prepare(str(tmp_path / 'tfds'), str(archive))
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


def test_recipes_name_every_normalization():
  found = [datasets.normalization(name) for name in datasets.NAMES]
  names = {datasets.normalization_of(*values) for values in found}
  choices = recipes.FIELDS['data.normalization'].choices
  assert set(choices) == {'', 'imagenet', *names}


def test_an_unknown_name_gets_the_nearest_and_all_that_there_are(own):
  with pytest.raises(UserError) as caught:
    datasets.load('xyz', 'train', str(own))
  assert str(caught.value) == (
      "unknown data set 'xyz'; built in: digits, digit_masks, "
      f'digit_boxes, cifar10; in {own}: own; or give the path to a folder with '
      'a folder for each class, or prepare the data (`gswinrmt prepare --help`)'
  )
  with pytest.raises(UserError, match='did you mean own'):
    datasets.info('onw', str(own))


def test_a_name_is_not_the_folder_of_that_name(own, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ('digits', 'cifar10', 'own', 'else'):
    (tmp_path / name).mkdir(exist_ok=True)
  for name in ('digits', 'cifar10', 'own'):
    assert not datasets.folder_of(name, str(own))
    (said,) = datasets.describe(name, str(own))
    assert said == (
        f'{name!r} is taken as the data set of that name; for the folder, give '
        f'./{name}'
    )
    assert datasets.folder_of(f'./{name}', str(own)) == tmp_path / name
  assert datasets.folder_of('else', str(own)) == tmp_path / 'else'
  with pytest.raises(UserError, match='cifar10 is not prepared in'):
    datasets.open_source('cifar10', 'train', str(own))


def test_a_data_set_of_ones_own(own):
  info = datasets.info('own', str(own))
  assert info.name == 'own' and info.class_names == folder_data.CLASSES
  assert info.mean == (0.485, 0.456, 0.406)
  assert info.std == (0.229, 0.224, 0.225)
  assert info.image_size == (0, 0)  # unknown until images are read
  train = datasets.load('own', 'train', str(own), image_size=(9, 7))
  assert len(train) == 8 and train.image_shape == (9, 7, 3)
  parts = [
      datasets.load('own', split, str(own), image_size=(9, 7))
      for split in ('train[:3]', 'train[3:]')
  ]
  image = np.concatenate([part.image for part in parts])
  np.testing.assert_array_equal(image, train.image)


def test_splits_of_their_own(own, path):
  for name, folder, want in (
      ('own', own, ('train', 'val', '')),
      ('own', path.parents[1], ('train[:90%]', 'train[90%:]', '')),
      ('digit_boxes', '', ('train', 'val', 'test')),
      ('cifar10', '', ('train[:45000]', 'train[45000:]', 'test')),
  ):
    found = datasets.own_splits(name, str(folder))
    assert tuple(found[split] for split in ('train', 'val', 'test')) == want


@pytest.mark.parametrize(
    'split', ['valid', 'train[', 'train[0:9:2]', 'train[50:]', 'train[:99]', '']
)
def test_bad_split_is_one_line(split, own):
  with pytest.raises(
      UserError, match='or it is empty: use train or v'
  ) as caught:
    datasets.load('own', split, str(own))
  message = str(caught.value)
  assert f'no split {split!r}' in message and '\n' not in message


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
  assert message.startswith(f'{final} cannot be read') and '\n' not in message


def test_only_what_is_missing_is_prepared(root, monkeypatch, capsys):
  capsys.readouterr()
  cifar10.prepare_if_missing('cifar10', str(root))
  assert capsys.readouterr().out == ''
  asked = []
  monkeypatch.setattr(cifar10, 'prepare', asked.append)
  cifar10.prepare_if_missing('cifar10', str(root / 'other'))
  assert asked == [str(root / 'other')]


@pytest.fixture(scope='module')
def path(tmp_path_factory):
  root = tmp_path_factory.mktemp('tfds')
  return folder_data.write(root, {'train': folder_data.examples(4)})


def test_names_are_those_with_a_version(path, tmp_path, monkeypatch):
  for name in ('b', 'a'):
    shutil.copytree(path, tmp_path / name / '1.0.0')
  (tmp_path / 'half' / '1.0.0').mkdir(parents=True)
  (tmp_path / 'downloads').mkdir()
  shutil.copytree(path, tmp_path / '.hidden' / '1.0.0')
  assert prepared.names(str(tmp_path)) == ['a', 'b']
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  assert prepared.names('') == ['a', 'b']
  assert prepared.names(str(tmp_path / 'nowhere')) == []


def test_the_newest_version_is_opened(path, tmp_path):
  for version in ('1.9.0', '1.10.0', '1.2.0'):
    target = shutil.copytree(path, tmp_path / 'own' / version)
    info = json.loads((target / 'dataset_info.json').read_text())
    info['version'] = version
    (target / 'dataset_info.json').write_text(json.dumps(info))
  builder = prepared.open_newest('own', str(tmp_path))
  assert str(builder.info.version) == '1.10.0'
  assert prepared.open_newest('other', str(tmp_path)) is None


def test_one_class_is_refused(tmp_path):
  folder_data.write(
      tmp_path, {'train': folder_data.examples(1)}, classes=('ant',)
  )
  with pytest.raises(UserError, match='file_name, image, label and 1 classes'):
    datasets.info('own', str(tmp_path))


def test_other_features_are_refused(path, tmp_path):
  final = shutil.copytree(path, tmp_path / 'own' / '1.0.0')
  features = json.loads((final / 'features.json').read_text())
  inner = features['featuresDict']['features']
  inner['digit'] = inner.pop('label')
  (final / 'features.json').write_text(json.dumps(features))
  os.rename(final / 'label.labels.txt', final / 'digit.labels.txt')
  with pytest.raises(UserError, match='holds digit, file_name, image and 0 cl'):
    datasets.info('own', str(tmp_path))


def test_a_record_that_cannot_be_read_is_one_line(path):
  source = sources.TfdsSource(prepared.open_version(path), 'train')
  source._records = mock.MagicMock()
  source._records.__getitem__.side_effect = OSError('cut off')
  with pytest.raises(UserError, match=r'cannot be read \(cut off\): if it is'):
    source[0]


def test_a_missing_shard_is_one_line(path, tmp_path):
  final = shutil.copytree(path, tmp_path / 'own' / '1.0.0')
  for shard in final.glob('*array_record*'):
    shard.unlink()
  said = r'damaged, remove that folder .*need no preparation\)$'
  with pytest.raises(UserError, match=said) as caught:
    datasets.open_source('own', 'train', str(tmp_path))
  assert '\n' not in str(caught.value)


def test_a_configuration_is_a_data_set_of_its_set(path, tmp_path):
  final = shutil.copytree(path, tmp_path / 'own' / 'big' / '1.0.0')
  info = json.loads((final / 'dataset_info.json').read_text())
  info['configName'] = 'big'
  (final / 'dataset_info.json').write_text(json.dumps(info))
  assert prepared.open_newest('own', str(tmp_path)) is None
  source = datasets.open_source('big', 'train', str(tmp_path / 'own'))
  assert len([source[row] for row in range(len(source))]) == 4


def _open(root, examples, split='train'):
  folder_data.write(root, {'train': examples})
  return datasets.open_source('own', split, str(root))


def test_every_record_is_the_file_as_it_was(tmp_path):
  examples = folder_data.examples(7)
  grey = PIL.Image.new('L', (5, 4), 77)
  grey.save(tmp_path / 'grey.png')
  examples.append(('b/grey.png', (tmp_path / 'grey.png').read_bytes(), 1))
  source = _open(tmp_path, examples)
  assert len(source) == 8
  found = {
      source.name(row): (picture, label)
      for row, (picture, label) in enumerate(map(source.__getitem__, range(8)))
  }
  assert len(found) == 8
  for file_name, encoded, label in examples:
    (name,) = (name for name in found if f'({file_name})' in name)
    want = pictures.decode(encoded, '')
    np.testing.assert_array_equal(found[name][0], want)
    assert found[name][1] == label


def test_no_label_is_named(tmp_path):
  examples = folder_data.examples(3)
  examples[1] = (*examples[1][:2], -1)
  source = _open(tmp_path, examples)
  with pytest.raises(UserError, match=r'0_1\.jpg\) has an invalid label, -1'):
    [source[row] for row in range(3)]


def test_features_that_are_not_pixels_or_one_label_are_refused(monkeypatch):
  class Builder:
    data_path = 'own/1.0.0'
    as_data_source = mock.Mock(return_value=[])
    info = types.SimpleNamespace(
        features={
            'image': tfds.features.Image(shape=(4, 4, 1), dtype=np.float32),
            'label': tfds.features.Sequence(
                tfds.features.ClassLabel(names=['a', 'b'])
            ),
        },
        version='1.0.0',
        splits={'train': mock.Mock(num_shards=0)},
    )

  monkeypatch.setattr(datasets.prepared, 'open_newest', lambda *_: Builder)
  with pytest.raises(UserError, match='holds image, label and 0 classes: '):
    datasets.open_source('own', 'train')
  with pytest.raises(UserError, match='has images of float32'):
    sources.TfdsSource(Builder, 'train')


def test_records_are_told_apart_by_name_id_or_bytes():
  class Builder:
    name = 'own'
    data_path = 'own/1.0.0'
    info = types.SimpleNamespace(
        features={'label': types.SimpleNamespace(num_classes=1)},
        version='1.0.0',
        splits={'train': mock.Mock(num_shards=0)},
    )
    records = (
        {'file_name': b'a.png', 'id': b'7', 'image': b'1'},
        {'id': b'8', 'image': b'2'},
        {'id': 9, 'image': b'3'},
        {'image': b'4'},
    )

    def as_data_source(self, split, decoders):
      records = self.records

      return records

  source = sources.TfdsSource(Builder(), 'train')
  hashes = [hashlib.sha256(data).hexdigest() for data in (b'4', b'3')]
  found = [source.key(row) for row in (3, 1, 0, 2)]
  assert found == [hashes[0], '8', 'a.png', hashes[1]]


SIZES = {'train': 1297, 'val': 200, 'test': 300}


def stored():
  path = resources.files('gswinrmt_jax.data') / 'digits.npz'
  with path.open('rb') as file, np.load(file) as data:
    return dict(data)


def test_the_arrays_are_those_of_uci():
  data = stored()
  # Images per digit in scikit-learn's copy.
  counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
  assert np.bincount(data['label']).tolist() == counts
  content = b''.join(
      data[key].tobytes() for key in ('image', 'label', *digits.SPLITS)
  )
  assert hashlib.sha256(content).hexdigest() == (
      '53e667624c00cbd264a6ffdeba9b54ee8e06a8b1115729fa7e85bd657337cfcf'
  )


@pytest.mark.parametrize('split', digits.SPLITS)
def test_read_enlarges_and_scales_exactly(split):
  data = stored()
  image, label = digits.read(split)
  assert image.dtype == np.uint8 and label.dtype == np.int32
  assert image.shape == (SIZES[split], 32, 32, 3)
  # 255 v / 16, rounded by hand; v = 8 gives 127.5.
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


def test_masks_and_scenes_are_what_they_always_were():
  """Results on them are published."""
  masks = digits.read_masks('val')[1]
  scenes = hashlib.sha256()
  for image, found in digits.read_scenes('val'):
    scenes.update(image.tobytes())
    for label, ink in found:
      scenes.update(b'%d' % label + ink.tobytes())
  of_masks = hashlib.sha256(np.ascontiguousarray(masks)).hexdigest()
  assert of_masks.startswith('a25bc38e660679e0')
  assert scenes.hexdigest().startswith('8c10276212caec7b')


def test_unknown_split_is_refused():
  with pytest.raises(UserError, match=r"'train\[:9\]'.* train, val, test"):
    digits.read('train[:9]')


def test_classes_are_in_the_order_of_the_labels():
  names = imagenet.classes()
  assert len(names) == len(set(names)) == imagenet.NUM_CLASSES
  # As in every published list of the labels.
  assert names[0] == 'tench'
  assert names[207] == 'golden retriever'
  assert names[281] == 'tabby'
  assert names[817] == 'sports car'
  assert names[999] == 'toilet tissue'
  assert names[134] == 'crane (n02012849)'


def test_identifiers_are_sorted():
  wnids = imagenet.wnids()
  assert list(wnids) == sorted(set(wnids)) and len(wnids) == 1000
  assert wnids[0] == 'n01440764' and wnids[999] == 'n15075141'
