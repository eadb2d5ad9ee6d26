"""Tests the model card of exported weights."""

import dataclasses
import pathlib

import PIL.Image
import pytest
import yaml

from gswinrmt_jax.deploy import export, model_card
from gswinrmt_jax.weights import load, safetensors_file

_RUN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'


@pytest.fixture(scope='module')
def digits():
  return load.load(_RUN)


@pytest.fixture(scope='module')
def measured(digits):
  part = {
      'step': digits.step,
      'epoch': 12,
      'val_accuracy': 0.25,
      'val_ema_accuracy': 0.5,
      'test_accuracy': 0.375,
      'test_ema_accuracy': 0.625,
      'test_top5_accuracy': 0.875,
      'test_smoothed_loss': 0.75,
  }
  return _changed(digits, figures={'last': part, 'best': part, 'seed': 3})


def _changed(weights, **changes):
  card = dataclasses.replace(weights.card, **changes)
  return dataclasses.replace(weights, card=card)


def _text(folder, weights, form='safetensors', source='here', **about):
  model_card.write(folder, weights, form, source=source, **about)
  assert model_card.is_one(folder / 'README.md')
  return (folder / 'README.md').read_text()


def _front(text):
  return yaml.safe_load(text.split('---\n', 2)[1])


def test_model_hubs_can_read_the_metadata(measured, tmp_path):
  raw = dataclasses.replace(measured, which='raw')
  text = _text(tmp_path, raw, license='cc-by-4.0', note='Trained on a desk.')
  front = _front(text)
  (entry,) = front.pop('model-index')
  assert front == {
      'library_name': 'gswinrmt_jax',
      'pipeline_tag': 'image-classification',
      'license': 'cc-by-4.0',
      'tags': ['jax', 'flax', 'vision-transformer'],
      'datasets': ['digits'],
  }
  assert entry['name'] == 'golden_run' and '\n# golden_run\n' in text
  validation, result = entry['results']
  assert result['task'] == {'type': 'image-classification'}
  for each, split in ((validation, 'val'), (result, 'test')):
    data = {'name': 'digits', 'type': 'digits', 'split': split}
    assert each['dataset'] == data
  assert result['metrics'][-1] == {
      'type': 'loss',
      'name': 'test cross-entropy, smoothing 0.1',
      'value': 0.75,
  }
  assert '\n## Training\n\nTrained on a desk.\n' in text
  assert 'with widths 8 8 16 16, ' in text and '19,358 parameters' in text
  # The splits of the run, which may be slices.
  splits = {'splits': {'val': 'train[:300]', 'test': 'test[:200]'}}
  figures = {**raw.card.figures, **splits}
  text = _text(tmp_path, _changed(raw, figures=figures))
  validation, result = _front(text)['model-index'][0]['results']
  assert validation['dataset']['split'] == 'train[:300]'
  assert result['dataset']['split'] == 'test[:200]'
  assert 'seed 3; validation on train[:300]; test on test[:200].' in text


def test_weights_that_are_exported_again_keep_their_results(measured, tmp_path):
  """Their card has the checkpoint, and the data that it was measured on."""
  checkpoint = {'step': measured.step, 'epoch': 12, 'weights': 'ema'}
  own = {'checkpoint': checkpoint, 'data': 'digits'}
  card = dataclasses.replace(
      measured.card, figures={**measured.card.figures, **own}
  )
  again = load.Weights(measured.variables, card, 'weights', tmp_path)
  text = _text(tmp_path, again)
  assert '| on digits | |' in text and '| test accuracy | 62.50% |' in text
  assert 'The best checkpoint, epoch 12, moving average' in text
  assert _front(text)['datasets'] == ['digits']
  card = dataclasses.replace(card, figures=measured.card.figures)
  assert 'Not measured.' in _text(
      tmp_path, dataclasses.replace(again, card=card)
  )


def test_the_figures_are_those_of_the_weights_that_were_taken(
    measured, tmp_path
):
  raw, ema = (
      _text(tmp_path, dataclasses.replace(measured, which=which))
      for which in ('raw', 'ema')
  )
  assert '| validation accuracy | 25.00% |\n| test accuracy | 37.50% |' in raw
  assert '| validation accuracy | 50.00% |\n| test accuracy | 62.50% |' in ema
  assert 'The best checkpoint, epoch 12; seed 3.' in raw
  assert 'epoch 12, moving average of the weights; seed 3.' in ema
  other = dataclasses.replace(measured, step=7)
  assert 'Not measured.' in _text(tmp_path, other)


@pytest.mark.parametrize('count', [3, 5, 6])
def test_top5_of_five_classes_is_no_figure(measured, count, tmp_path):
  few = _changed(measured, num_classes=count, class_names=())
  text = _text(tmp_path, dataclasses.replace(few, which='raw'))
  assert ('| test top-5 accuracy | 87.50% |' in text) == (count > 5)
  assert 'test accuracy' in text


def test_the_card_says_what_is_seen_of_a_picture(digits, tmp_path):
  text = _text(tmp_path, digits)
  assert 'cut from the middle of an image resized to cover 32 x 32 (' in text
  squeezed = _changed(digits, crop=0.0)
  assert 'is resized, ignoring aspect ratio' in _text(tmp_path, squeezed)


def test_the_path_of_class_folders_stays_private(measured, tmp_path):
  recipe = measured.recipe.copy_and_resolve_references()
  recipe.data.name = '/home/me/cats and dogs'
  text = _text(tmp_path, dataclasses.replace(measured, recipe=recipe))
  assert '| on cats and dogs | |' in text and 'datasets' not in _front(text)
  assert '/home' not in text


def test_the_example_runs_as_printed(digits, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  PIL.Image.new('RGB', (40, 30)).save('image.jpg')
  export.export(digits, 'safetensors', pathlib.Path('my out', 'digits'))
  text = pathlib.Path('my out', 'digits', 'README.md').read_text()
  assert "`gswinrmt predict 'my out/digits' image.jpg`" in text
  program = text.split('```python\n')[1].split('```')[0]
  names = {}
  exec(program, names)
  assert names['logits'].shape == (1, 10)
  assert 'image.jpg\n  ' in capsys.readouterr().out


def test_the_example_of_a_backbone(digits, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  PIL.Image.new('RGB', (40, 30)).save('image.jpg')
  params = {k: v for k, v in digits.variables['params'].items() if k != 'head'}
  del params['norm']
  backbone = _changed(digits, num_classes=0, class_names=())
  variables = {**digits.variables, 'params': params}
  safetensors_file.write(tmp_path / 'a.safetensors', variables, backbone.card)
  alone = dataclasses.replace(backbone, recipe=None, step=None)
  text = _text(tmp_path, alone, source='a')
  assert '\n# retention_compact\n' in text
  assert 'pipeline_tag' not in text and 'gswinrmt predict' not in text
  program = text.split('```python\n')[1].split('```')[0]
  names = {}
  exec(program.replace("'a'", "'a.safetensors'"), names)
  assert names['features'].shape == (1, 16)


def test_another_readme_is_no_card(tmp_path):
  path = tmp_path / 'README.md'
  for text in ('# A title', '---\nlibrary_name: timm\n---\n'):
    path.write_text(text)
    assert not model_card.is_one(path)
