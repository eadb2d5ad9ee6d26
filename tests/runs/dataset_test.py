"""Tests the record of a run's data (data.json) and its check on resuming."""

import dataclasses
import io
import json

import folder_data
import pytest
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets, records
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import dataset_record
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import train_loop

_INFO = datasets.Info('own', ('a', 'b'), (0.1,) * 3, (0.2,) * 3, (8, 8))
_RECIPE = recipes.digits('rmt_compact')
_RECIPE.data.update(train_split='train', val_split='val', test_split='test')
_OLD = {
    'name': 'own',
    'class_names': ['a', 'b'],
    'mean': [0.1] * 3,
    'std': [0.2] * 3,
    'image_size': [8, 8],
    'crop': 0.8,
}
_OLD_SPLIT = {'version': '1.0.0', 'records': 12, 'order': 'abc'}
_SPLITS = {
    'train': dataset_record.Identity('1.0.0', 12, 'abc', 'xyz'),
    'val': dataset_record.Identity('1.0.0', 5, 'def'),
}


def _spec(info=_INFO, crop=0.8, **splits):
  return dataset_record.ImageSpec(info, crop, {**_SPLITS, **splits})


def test_what_is_written_is_read(tmp_path):
  _spec().write(tmp_path)
  later = {'labels': '', 'content': '', 'split': ''}
  val = {'version': '1.0.0', 'records': 5, 'order': 'def'}
  assert json.loads((tmp_path / 'data.json').read_text()) == {
      **_OLD,
      'task': 'classification',
      'label_maps': '',
      'splits': {
          'train': {**_OLD_SPLIT, **later, 'labels': 'xyz'},
          'val': {**val, **later},
      },
  }
  assert dataset_record.read(tmp_path, _RECIPE) == _spec()
  _spec().write(tmp_path)  # no difference


@pytest.mark.parametrize(
    ('other', 'said'),
    [
        (
            _spec(info=dataclasses.replace(_INFO, class_names=('a', 'c'))),
            'class_names differs',
        ),
        (_spec(info=dataclasses.replace(_INFO, name='x')), 'name differs'),
        (_spec(crop=0.9), 'crop differs'),
        (dataclasses.replace(_spec(), maps='other'), 'label_maps differs'),
        (
            _spec(train=dataset_record.Identity('1.0.0', 11, 'abc', 'xyz')),
            'records of train is 12 there and 11 here',
        ),
        (
            _spec(train=dataset_record.Identity('1.0.0', 12, 'abc', 'other')),
            'labels of train differs',
        ),
        (
            _spec(val=dataset_record.Identity('1.1.0', 5, 'x')),
            "version of val is '1.0.0' there and '1.1.0' here, order of val "
            'differs',
        ),
    ],
)
def test_other_data_do_not_go_on(other, said, tmp_path):
  _spec().write(tmp_path)
  with pytest.raises(UserError) as caught:
    other.write(tmp_path)
  assert str(caught.value) == (
      f'{other.info.name} is not the data that {tmp_path} was started with: '
      f'in data.json {said}; choose another --workdir'
  )
  assert dataset_record.read(tmp_path, _RECIPE) == _spec()


def test_an_older_run_goes_on_and_is_completed(tmp_path):
  found = dataset_record.read(tmp_path, _RECIPE)  # of before there was a record
  assert found == dataset_record.ImageSpec(datasets.info('digits'), 1.0)
  path = tmp_path / 'data.json'
  path.write_text(json.dumps(_OLD))
  assert dataset_record.read(tmp_path, _RECIPE).splits == {}
  _spec().write(tmp_path)
  assert dataset_record.read(tmp_path, _RECIPE) == _spec()
  # Before, splits had no checksum of their labels.
  path.write_text(json.dumps({**_OLD, 'splits': {'train': _OLD_SPLIT}}))
  _spec().write(tmp_path)
  assert dataset_record.read(tmp_path, _RECIPE) == _spec()
  path.write_text(json.dumps({**_OLD, 'crop': 0.7}))
  with pytest.raises(UserError, match='crop differs'):
    _spec().write(tmp_path)


@pytest.mark.parametrize(
    'change',
    [
        {'splits': [3]},
        {'crop': 2.0},
        {'std': [0.2, 0.0, 0.2]},
        b'{"crop": 1',
        b'[]',
    ],
)
def test_a_broken_file_is_one_line(change, tmp_path):
  text = isinstance(change, dict) and json.dumps({**_OLD, **change}).encode()
  (tmp_path / 'data.json').write_bytes(text or change)
  for use in (
      _spec().write,
      lambda folder: dataset_record.read(folder, _RECIPE),
  ):
    with pytest.raises(UserError, match=r'data\.json cannot be read') as caught:
      use(tmp_path)
    assert '\n' not in str(caught.value)


def _written(folder, splits):
  """Writes splits; returns what opens them."""
  folder_data.write(folder, splits)
  return {
      name: datasets.open_source('own', name, str(folder)) for name in splits
  }


@pytest.mark.parametrize('storage', ['memory', 'disk', 'decode'])
def test_records_say_whose_they_are(storage, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'user'))
  splits = {'train': folder_data.examples(7), 'val': folder_data.examples(3, 1)}
  source = _written(tmp_path, splits)['train']
  train, val = (
      datasets.load(
          'own', split, str(tmp_path), image_size=(8, 8), storage=storage
      )
      for split in splits
  )
  opened = {'train': train.source, 'val': val.source}
  found = dataset_record.of_run(_RECIPE, _INFO, opened, None).splits
  order = source.order_checksum()
  content = source.content_checksum()
  assert found['train'] == dataset_record.Identity(
      '1.0.0', 7, order, '', content, 'train'
  )
  assert found['val'].records == 3 and found['val'].order != order


def test_a_run_does_not_go_on_with_other_records(tmp_path, monkeypatch):
  tiny_parts.install(monkeypatch)
  quiet = Terminal(io.StringIO())
  config = recipes.resolve(tiny_parts.recipe())
  for _ in range(2):
    with train_loop.open_run(config, tmp_path / 'run', quiet):
      pass
  val = tiny_parts.SPLITS['val']
  source = records.Arrays(val.image[::-1], val.label[::-1])
  turned = records.Arrays(source.image, source.label, source)
  monkeypatch.setitem(tiny_parts.SPLITS, 'val', turned)
  with pytest.raises(
      UserError, match=r'in data\.json order of val differs, content'
  ):
    with train_loop.open_run(config, tmp_path / 'run', quiet):
      pass


def test_a_start_without_a_test_split_keeps_the_record_of_it(
    tmp_path, monkeypatch
):
  tiny_parts.install(monkeypatch)
  folder, records_of = tmp_path / 'run', []
  for changes in ({}, {'data.test_split': ''}):
    tiny_parts.train(folder, stop_after_epochs=1 + len(records_of), **changes)
    records_of.append((folder / 'data.json').read_text())
  assert records_of[0] == records_of[1]
  assert json.loads(records_of[1])['splits'].keys() == {'train', 'val', 'test'}


@pytest.fixture(scope='module')
def own(tmp_path_factory):
  """Returns the examples of three splits, and the sources of those."""
  splits = {
      name: folder_data.examples(4, seed)
      for seed, name in enumerate(('train', 'val', 'test'))
  }
  return splits, _written(tmp_path_factory.mktemp('own'), splits)


@pytest.mark.parametrize(
    ('change', 'split'), [('pixels', 'train'), ('label', 'test')]
)
def test_images_and_labels_under_the_same_names_are_others(
    own, split, change, tmp_path
):
  """126 images turned upside down would otherwise be trained on."""
  examples, opened = list(own[0][split]), own[1]

  def write(folder):
    other = opened | _written(tmp_path / folder, {split: examples})
    dataset_record.of_run(_RECIPE, _INFO, other, None).write(tmp_path)

  dataset_record.of_run(_RECIPE, _INFO, opened, None).write(tmp_path)
  write('copy')
  name, content, label = examples[2]
  if change == 'label':
    examples[2] = name, content, (label + 1) % 3
  else:
    examples[2] = name, folder_data.encoded(9, (30, 30)), label
  said = rf'data\.json content of {split} differs; choose'
  with pytest.raises(UserError, match=said):
    write('second')


def test_a_run_may_be_tested_on_another_split(tmp_path):
  test = dataset_record.Identity('1.0.0', 5, 'x', '', 'y', 'test')
  _spec(test=test).write(tmp_path)
  part = dataset_record.Identity('1.0.0', 2, 'z', '', 'u', 'test[:2]')
  _spec(test=part).write(tmp_path)
  _spec().write(tmp_path)
  _spec(test=test).write(tmp_path)
  with pytest.raises(UserError, match='content of test differs'):
    _spec(test=dataclasses.replace(test, content='other')).write(tmp_path)


def test_the_crop_is_that_of_evaluation():
  """0 squeezes the whole image; images that are not resized are whole."""
  config = recipes.digits('rmt_compact')
  for size, crop, want in ((8, 0.0, 0.0), (8, 0.9, 0.9), (0, 0.9, 1.0)):
    config.data.update(image_size=size, eval_crop=crop)
    assert dataset_record.of_run(config, _INFO, {}, None).crop == want
