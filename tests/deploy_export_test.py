"""Tests conversion from PyTorch, and export to every format, read back."""

import dataclasses
import io
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import random_variables
import released_rmt
import torch_pickles
import yaml

import gswinrmt_jax
from gswinrmt_jax import files
from gswinrmt_jax.commands import export as export_command
from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import convert, export, model_card
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import fine_tuning
from gswinrmt_jax.weights import load, safetensors_file, torch_file

_RUN = pathlib.Path(__file__).parent / 'fixtures' / 'golden_run'


@pytest.fixture(scope='module')
def digits():
  return load.load(_RUN)


@pytest.fixture(scope='module', autouse=True)
def _logits_of_digits(digits):
  """Computes them once; written files have weights of their own."""
  compute = export.model_logits
  known = compute(digits)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
        export, 'model_logits', lambda w: known if w is digits else compute(w)
    )
    yield


def _export(loaded, form, folder):
  stream = io.StringIO()
  path = export.export(loaded, form, folder, Terminal(stream))
  return path, stream.getvalue()


def test_safetensors_with_card_and_figures(digits, tmp_path):
  path, said = _export(digits, 'safetensors', tmp_path / 'out')
  assert "logits differ by 0 from the model's own" in said
  names = sorted(file.name for file in path.parent.iterdir())
  assert names == ['README.md', 'config.json', 'model.safetensors']
  # Loaded by folder or by file, the variables are those of the run.
  for place in (path.parent, path):
    loaded = gswinrmt_jax.load_model(place)
    jax.tree.map(
        np.testing.assert_array_equal, loaded.variables, dict(digits.variables)
    )
  summary = json.loads((_RUN / 'summary.json').read_text())['best']
  text = (path.parent / 'README.md').read_text()
  assert f'| test accuracy | {summary["test_accuracy"]:.2%} |' in text
  assert f'epoch {summary["epoch"]}; seed 0' in text
  card = json.loads((path.parent / 'config.json').read_text())
  assert card['pretrained_cfg']['label_names'] == [str(n) for n in range(10)]


def test_half_precision_halves_the_file(digits, tmp_path):
  whole = tmp_path / 'whole.safetensors'
  safetensors_file.write(whole, digits.variables, digits.card)
  half = export.export(
      digits,
      'safetensors-float16',
      tmp_path / 'half',
      Terminal(io.StringIO()),
      license='cc-by-4.0',
      note='Trained on a desk.',
  )
  arrays = 4 * sum(a.size for a in jax.tree.leaves(digits.variables['params']))
  saved = whole.stat().st_size - half.stat().st_size
  assert saved == pytest.approx(arrays / 2, rel=0.02)
  found = load.load(half.parent).variables
  for new, old in zip(
      jax.tree.leaves(found),
      jax.tree.leaves(dict(digits.variables)),
      strict=True,
  ):
    assert new.dtype == np.float32
    np.testing.assert_allclose(new, old, rtol=2**-11, atol=2**-24)
  jax.tree.map(
      np.testing.assert_array_equal,
      found['batch_stats'],
      digits.variables['batch_stats'],
  )
  text = (half.parent / 'README.md').read_text()
  assert 'license: cc-by-4.0' in text and 'Trained on a desk.' in text
  assert 'modified: widths 8 8 16 16, ' in text and '19,358 parameters' in text


def test_the_model_card_says_what_is_seen_of_a_picture(digits, tmp_path):
  model_card.write(tmp_path, digits, 'safetensors')
  text = (tmp_path / 'README.md').read_text()
  assert 'of which evaluation keeps 100.0% along a side' in text
  card = dataclasses.replace(digits.card, crop=0.0)
  squeezed = dataclasses.replace(digits, card=card)
  model_card.write(tmp_path, squeezed, 'safetensors')
  assert 'resizes them, ignoring aspect ratio' in (
      tmp_path / 'README.md'
  ).read_text().replace('\n', ' ')


def test_a_folder_of_programs_is_not_loaded(tmp_path, digits):
  card = digits.card.to_dict()
  (tmp_path / 'config.json').write_text(json.dumps(card))
  with pytest.raises(UserError, match=r'programs .* cannot be loaded'):
    load.load(tmp_path)


def test_stablehlo_runs_alone(digits, tmp_path):
  """In a process that does not import this package, with another batch size."""
  path, said = _export(digits, 'stablehlo', tmp_path)
  assert 'logits differ by' in said
  pixels = export.sample_pixels(digits)
  np.save(tmp_path / 'pixels.npy', np.concatenate([pixels, pixels[:1]]))
  program = (
      'import sys, numpy, jax\n'
      'from jax import export\n'
      f'data = open({str(path)!r}, "rb").read()\n'
      f'pixels = numpy.load({str(tmp_path / "pixels.npy")!r})\n'
      'found = export.deserialize(bytearray(data))\n'
      'assert set(found.platforms) == {"cpu", "cuda"}\n'
      f'numpy.save({str(tmp_path / "logits.npy")!r}, found.call(pixels))\n'
      'assert not [name for name in sys.modules if "gswinrmt" in name]\n'
  )
  subprocess.run([sys.executable, '-c', program], check=True, cwd=tmp_path)
  logits = np.load(tmp_path / 'logits.npy')
  want = export.model_logits(digits)
  np.testing.assert_allclose(logits[:2], want, rtol=0, atol=1e-5)
  np.testing.assert_allclose(logits[2], want[0], rtol=0, atol=1e-5)


@pytest.mark.onnx
def test_onnx_runs_in_its_runtime(digits, tmp_path):
  import onnxruntime

  path, said = _export(digits, 'onnx', tmp_path)
  assert 'logits differ by' in said
  session = onnxruntime.InferenceSession(
      path, providers=['CPUExecutionProvider']
  )
  pixels = export.sample_pixels(digits)[[1, 0, 1]]  # another batch size
  name = session.get_inputs()[0].name
  (logits,) = session.run(None, {name: pixels})
  want = export.model_logits(digits)[[1, 0, 1]]
  np.testing.assert_allclose(logits, want, rtol=0, atol=1e-5)


def test_torch_for_rmt_alone(digits, tmp_path):
  with pytest.raises(UserError, match='Only RMT has names'):
    _export(digits, 'torch', tmp_path / 'digits')
  assert not list(tmp_path.iterdir())

  source = tmp_path / 'rmt.pth'
  torch_pickles.save(source, released_rmt.state_dict())
  convert.convert(source, tmp_path / 'rmt', full_stages=(3, 4))
  loaded = load.load(tmp_path / 'rmt')
  path, said = _export(loaded, 'torch', tmp_path / 'out')
  assert "logits differ by 0 from the model's own" in said
  written = torch_file.read(path)['model']
  expected = released_rmt.state_dict()
  assert written.keys() == expected.keys()
  for key, array in expected.items():
    assert written[key].shape == array.shape
    if not key.endswith('batches_tracked') and 'Relpos' not in key:
      np.testing.assert_array_equal(written[key], array, err_msg=key)
  assert 'Not measured' in (path.parent / 'README.md').read_text()
  # The card next to the weights holds fields that no array reveals.
  for place in (path, path.parent):
    again = load.load(place)
    assert again.card.fields['full_stages'] == [3, 4]
    assert again.make_model() == loaded.make_model()
  card = dataclasses.replace(
      loaded.card, fields={**loaded.card.fields, 'head': 'norm'}
  )
  with pytest.raises(UserError, match='no head like that'):
    _export(dataclasses.replace(loaded, card=card), 'torch', tmp_path / 'no')


@pytest.mark.parametrize('error', [1e-6, np.nan])
def test_what_differs_is_removed(digits, tmp_path, monkeypatch, error):
  def wrong(loaded, path):
    path.touch()
    return np.float32([1.0, error])

  before = tmp_path / 'out' / 'model.safetensors'
  before.parent.mkdir()
  before.write_text('of an earlier export')
  form = ('model.safetensors', wrong, 0.0)
  monkeypatch.setitem(export._FORMATS, 'safetensors', form)
  monkeypatch.setattr(
      export, 'model_logits', lambda loaded: np.float32([1.0, 0.0])
  )
  with pytest.raises(UserError, match=r'differ by (1e-06|nan) .*not kept'):
    _export(digits, 'safetensors', tmp_path / 'out')
  assert list(tmp_path.rglob('*')) == [before.parent, before]
  assert before.read_text() == 'of an earlier export'


@pytest.mark.parametrize('name', ['config.json', 'README.md'])
def test_files_of_something_else_are_kept(digits, tmp_path, name):
  (tmp_path / name).write_text('{"model": "mine"}')
  with pytest.raises(UserError, match=f'{name} was not written by an export'):
    _export(digits, 'safetensors', tmp_path)
  assert (tmp_path / name).read_text() == '{"model": "mine"}'


def test_the_command(tmp_path, capsys, monkeypatch):
  assert export_command._FORMATS == export.FORMATS
  calls = []
  monkeypatch.setattr(
      export,
      'export',
      lambda loaded, *rest, **about: calls.append((loaded.step, *rest, about)),
  )
  arguments = ['export', str(_RUN), f'--out={tmp_path}']
  assert main.main([*arguments, '--format=torch', '--step=latest']) == 0
  assert calls == [(243, 'torch', tmp_path, {'license': '', 'note': ''})]
  assert main.main(['export', str(_RUN), '--format=onnx']) == 0
  assert calls[1][2] == _RUN / 'export'
  assert main.main([*arguments, '--format=keras']) == 2
  assert (
      "--format is 'keras': must be safetensors or" in capsys.readouterr().err
  )


@pytest.fixture(scope='module')
def measured(digits):
  part = {
      'step': digits.step,
      'epoch': 12,
      'val_accuracy': 0.25,
      'val_ema_accuracy': 0.5,
      'test_accuracy': 0.375,
      'test_ema_accuracy': 0.625,
  }
  figures = {'last': part, 'best': part, 'seed': 3}
  card = dataclasses.replace(digits.card, figures=figures)
  return dataclasses.replace(digits, card=card)


def _text(measured, **changes):
  changed = dataclasses.replace(measured, **changes)
  return '\n'.join(model_card._lines(changed, 'safetensors', '', ''))


def test_model_hubs_can_read_the_metadata(measured):
  part = {**measured.card.figures['best'], 'test_smoothed_loss': 0.75}
  figures = {'last': part, 'best': part, 'seed': 3}
  card = dataclasses.replace(measured.card, figures=figures)
  _, front, _ = _text(measured, card=card, which='raw').split('---\n', 2)
  (entry,) = yaml.safe_load(front)['model-index']
  assert entry['results'][0]['metrics'][-1] == {
      'type': 'loss',
      'name': 'test cross-entropy, smoothing 0.1',
      'value': 0.75,
  }


def test_the_figures_are_those_of_the_weights_that_were_taken(measured):
  raw, ema = _text(measured, which='raw'), _text(measured, which='ema')
  assert '| validation accuracy | 25.00% |\n| test accuracy | 37.50% |' in raw
  assert '| validation accuracy | 50.00% |\n| test accuracy | 62.50% |' in ema
  assert 'The best checkpoint, epoch 12; seed 3.' in raw
  assert 'epoch 12, moving average of the weights; seed 3.' in ema


def test_another_step_was_not_measured(measured):
  assert 'Not measured.' in _text(measured, step=7)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  path = tmp_path_factory.mktemp('torch') / 'rmt.pth'
  torch_pickles.save(path, {'model': released_rmt.state_dict(), 'epoch': 299})
  return path


@pytest.fixture(scope='module')
def folder(checkpoint):
  out = checkpoint.with_name('converted')
  _convert(checkpoint, out, full_stages=(3, 4))
  return out


def _arrays():
  """Returns the released names of parameters and statistics."""
  aside = ('Relpos', 'num_batches_tracked')
  return [
      key
      for key in released_rmt.state_dict()
      if not any(part in key for part in aside)
  ]


def _convert(source, out, **settings):
  stream = io.StringIO()
  convert.convert(source, out, terminal=Terminal(stream), **settings)
  return stream.getvalue()


def test_the_folder_has_the_weights(folder):
  found = load.load(folder)
  want = released_rmt.arrays()
  model = found.make_model()
  logits = jax.jit(lambda v, x: model.apply(v, x, train=False))(
      found.variables, want['x']
  )
  np.testing.assert_allclose(logits, want['logits'], rtol=0, atol=1e-5)
  assert found.card.num_classes == 10
  assert found.card.image_size == (224, 224) and found.card.crop == 0.875


def test_the_report_names_everything(checkpoint, folder, tmp_path, capsys):
  said = _convert(checkpoint, tmp_path / 'a', full_stages=(3, 4))
  assert 'entry model: rmt_t, 10 classes' in said
  assert f'loaded: {len(_arrays())} arrays' in said
  arrays = released_rmt.state_dict()
  del arrays['head.bias']
  arrays['more'] = np.zeros(3, np.float32)
  path = tmp_path / 'b.pth'
  torch_pickles.save(path, arrays)
  out = tmp_path / 'out'
  arguments = ['convert', str(path), str(out), '--full-stages=3,4']
  assert main.main(arguments) == 2
  printed = capsys.readouterr()
  assert 'missing: head.bias' in printed.out
  assert 'unexpected: more' in printed.out
  assert (
      '1 arrays missing' in printed.err and 'nothing was written' in printed.err
  )
  assert not list(tmp_path.glob('out*'))


def test_nothing_is_written_over(checkpoint, folder):
  with pytest.raises(UserError, match='is there already'):
    _convert(checkpoint, folder, full_stages=(3, 4))


def test_a_folder_that_cannot_be_written_is_none(
    checkpoint, tmp_path, monkeypatch
):
  def write_json(path, value):
    raise OSError('disk full')

  monkeypatch.setattr(files, 'write_json', write_json)
  with pytest.raises(OSError, match='disk full'):
    _convert(checkpoint, tmp_path / 'a', full_stages=(3, 4))
  assert not list(tmp_path.iterdir())


def test_arguments_are_checked(capsys):
  assert main.main(['convert', 'a.pth', 'b', '--full-stages=x']) == 2
  assert "--full-stages is like 3,4, not 'x'" in capsys.readouterr().err
  assert main.main(['convert', 'a.pth', 'b']) == 2
  assert 'a.pth does not exist' in capsys.readouterr().err


def test_a_stage_that_is_not_there(checkpoint, tmp_path):
  with pytest.raises(UserError, match='are not in 1 to 4'):
    _convert(checkpoint, tmp_path / 'a', full_stages=(5,))


def test_a_run_can_start_from_it(folder):
  """With another number of classes and another image size."""
  model = released_rmt.model().clone(num_classes=4)
  fresh = random_variables.nested(model, (1, 40, 48, 3))
  moved, report = fine_tuning.transfer(fresh, load.load(folder).variables)
  anew = [line.split()[2] for line in report if line.startswith('starts')]
  assert sorted(anew) == ['params/head/bias', 'params/head/kernel']
  assert (
      'starts afresh: params/head/bias (is (10,) in the weights, (4,) here)'
      in report
  )
  np.testing.assert_array_equal(
      moved['batch_stats']['proj_norm']['var'],
      released_rmt.state_dict()['norm.running_var'],
  )
  np.testing.assert_array_equal(
      moved['params']['head']['kernel'],
      fresh['params']['head']['kernel'],
  )
