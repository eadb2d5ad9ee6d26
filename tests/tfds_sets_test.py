"""What is found below a TFDS data directory."""

import json
import os
import shutil

import folder_data
import pytest

from gswinrmt_jax.data import tfds_sets
from gswinrmt_jax.errors import UserError


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
  assert tfds_sets.names(str(tmp_path)) == ['a', 'b']
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  assert tfds_sets.names('') == ['a', 'b']
  assert tfds_sets.names(str(tmp_path / 'nowhere')) == []


def test_the_newest_version_is_opened(path, tmp_path):
  for version in ('1.9.0', '1.10.0', '1.2.0'):
    target = shutil.copytree(path, tmp_path / 'own' / version)
    info = json.loads((target / 'dataset_info.json').read_text())
    info['version'] = version
    (target / 'dataset_info.json').write_text(json.dumps(info))
  builder = tfds_sets.open_builder('own', str(tmp_path))
  assert str(builder.info.version) == '1.10.0'
  assert tfds_sets.open_builder('other', str(tmp_path)) is None


def test_one_class_is_refused(tmp_path):
  folder_data.write(
      tmp_path, {'train': folder_data.examples(1)}, classes=('ant',)
  )
  with pytest.raises(UserError, match='fewer than two classes'):
    tfds_sets.open_builder('own', str(tmp_path))


def test_other_features_are_refused(path, tmp_path):
  final = shutil.copytree(path, tmp_path / 'own' / '1.0.0')
  features = json.loads((final / 'features.json').read_text())
  inner = features['featuresDict']['features']
  inner['digit'] = inner.pop('label')
  (final / 'features.json').write_text(json.dumps(features))
  os.rename(final / 'label.labels.txt', final / 'digit.labels.txt')
  with pytest.raises(UserError, match='holds digit, file_name, image: images'):
    tfds_sets.open_builder('own', str(tmp_path))


def test_a_missing_shard_is_one_line(path, tmp_path):
  final = shutil.copytree(path, tmp_path / 'own' / '1.0.0')
  for shard in final.glob('*array_record*'):
    shard.unlink()
  with pytest.raises(UserError, match='half written or damaged') as caught:
    tfds_sets.open_split('own', 'train', str(tmp_path))
  assert '\n' not in str(caught.value)


def test_a_configuration_is_a_data_set_of_its_set(path, tmp_path):
  final = shutil.copytree(path, tmp_path / 'own' / 'big' / '1.0.0')
  info = json.loads((final / 'dataset_info.json').read_text())
  info['configName'] = 'big'
  (final / 'dataset_info.json').write_text(json.dumps(info))
  assert tfds_sets.open_builder('own', str(tmp_path)) is None
  source = tfds_sets.open_split('big', 'train', str(tmp_path / 'own'))
  assert len(list(source.read(range(len(source))))) == 4
