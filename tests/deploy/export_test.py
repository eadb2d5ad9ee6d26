"""Tests export to every format, read back."""

import dataclasses
import io
import json
import pathlib
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
import released_rmt

import gswinrmt_jax
from gswinrmt_jax.commands import export as export_command
from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import convert, export
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import load, safetensors_file, torch_file

_RUN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'


@pytest.fixture(scope='module')
def digits():
  return load.load(_RUN)


def _export(loaded, form, folder):
  stream = io.StringIO()
  path = export.export(loaded, form, folder, Terminal(stream))
  return path, stream.getvalue()


def test_safetensors_with_card_and_figures(digits, tmp_path):
  path, said = _export(digits, 'safetensors', tmp_path / 'out')
  assert "arrays differ by 0 from the model's own" in said
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
  want = export.model_outputs(digits)
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
  want = export.model_outputs(digits)[[1, 0, 1]]
  np.testing.assert_allclose(logits, want, rtol=0, atol=1e-5)


def test_what_the_converter_cannot_do_is_one_line(
    digits, tmp_path, monkeypatch
):
  def to_onnx(*_, **__):
    raise RuntimeError('Reshape of {2,6}\nand a trace')

  modules = {'jax2onnx': {'to_onnx': to_onnx}, 'onnxruntime': {}}
  for name, contents in modules.items():
    module = types.SimpleNamespace(**contents)
    monkeypatch.setitem(sys.modules, name, module)
  with pytest.raises(
      UserError, match=r'to ONNX \(Reshape of \{2,6\}\): choose --format=sta'
  ):
    _export(digits, 'onnx', tmp_path / 'out')
  assert not (tmp_path / 'out' / 'model.onnx').exists()


def test_torch_for_rmt_alone(digits, tmp_path):
  with pytest.raises(UserError, match='Only RMT has names'):
    _export(digits, 'torch', tmp_path / 'digits')
  assert not list(tmp_path.iterdir())

  source = tmp_path / 'rmt.pth'
  torch_file.write(source, released_rmt.state_dict())
  convert.convert(source, tmp_path / 'rmt', full_stages=(3, 4))
  loaded = load.load(tmp_path / 'rmt')
  path, said = _export(loaded, 'torch', tmp_path / 'out')
  assert "arrays differ by 0 from the model's own" in said
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
    assert again.card.make_model() == loaded.card.make_model()
  card = dataclasses.replace(
      loaded.card, fields={**loaded.card.fields, 'head': 'norm'}
  )
  with pytest.raises(UserError, match="no head='norm'"):
    _export(dataclasses.replace(loaded, card=card), 'torch', tmp_path / 'no')


def test_weights_that_are_not_finite_are_not_written(digits, tmp_path):
  broken = jax.tree.map(lambda x: x * np.nan, digits.variables)
  with pytest.raises(UserError, match='has values that are not finite, in b'):
    _export(dataclasses.replace(digits, variables=broken), 'torch', tmp_path)


@pytest.mark.parametrize('error', [2**-20, np.nan])
def test_what_differs_is_removed(digits, tmp_path, monkeypatch, error):
  def wrong(loaded, path):
    path.touch()
    *most, last = jax.tree.leaves(dict(loaded.variables))
    return [*most, np.append(last[:-1], last[-1] + np.float32(error))]

  before = tmp_path / 'out' / 'model.safetensors'
  before.parent.mkdir()
  before.write_text('of an earlier export')
  form = ('model.safetensors', wrong, 0.0)
  monkeypatch.setitem(export._FORMATS, 'safetensors', form)
  with pytest.raises(UserError, match=r'differ by (9\.5e-07|nan) .*not kept'):
    _export(digits, 'safetensors', tmp_path / 'out')
  assert list(tmp_path.rglob('*')) == [before.parent, before]
  assert before.read_text() == 'of an earlier export'


def test_the_tolerance_is_relative_to_each_output():
  one = np.float32([1.0, 0.5])
  said = export._compare('a', 'logits', (one, one + 0.01), (one, one), 0.011)
  assert said.startswith('logits differ by 0.01 ')
  with pytest.raises(UserError, match=r'logits that differ by 0\.02'):
    export._compare('a', 'logits', (9 * one, one + 0.02), (9 * one, one), 0.011)
  small = one / 100
  with pytest.raises(UserError, match=r'logits that differ by 0\.001'):
    export._compare('a', 'logits', (small + 0.001,), (small,), 0.011)


def test_a_folder_is_of_one_model(digits, tmp_path):
  """Each file would be loaded with the card of the last."""
  _export(digits, 'safetensors', tmp_path)
  card = dataclasses.replace(digits.card, mean=(0.5,) * 3)
  other = dataclasses.replace(digits, card=card)
  # Of the same name, it is replaced.
  _export(other, 'safetensors', tmp_path)
  assert load.read_card(tmp_path).mean == (0.5,) * 3
  (tmp_path / 'model.onnx').touch()
  config = tmp_path / 'config.json'  # that of an older package
  config.write_text(config.read_text().replace(gswinrmt_jax.__version__, '0'))
  _export(other, 'safetensors', tmp_path)
  with pytest.raises(UserError, match=r'model\.onnx is of other weights'):
    _export(digits, 'safetensors', tmp_path)
  assert load.read_card(tmp_path / 'model.safetensors').mean == (0.5,) * 3


def test_a_folder_is_of_one_checkpoint(digits, tmp_path):
  _export(digits, 'safetensors', tmp_path)
  (tmp_path / 'model.safetensors').rename(tmp_path / 'model.onnx')
  trained = jax.tree.map(lambda x: x * 1.01, digits.variables)
  other = dataclasses.replace(digits, variables=trained)
  with pytest.raises(UserError, match=r'model\.onnx is of other weights'):
    _export(other, 'safetensors', tmp_path)
  # A run may be tested later, and a file may have its arrays rounded.
  card = dataclasses.replace(digits.card, figures={'last': {}})
  half = jax.tree.map(lambda x: x.astype(np.float16), digits.variables)
  same = dataclasses.replace(digits, card=card, variables=half)
  _export(same, 'safetensors', tmp_path)
  # Earlier versions wrote no checksum.
  written = json.loads((tmp_path / 'config.json').read_text())
  del written['crc32']
  (tmp_path / 'config.json').write_text(json.dumps(written))
  _export(other, 'safetensors', tmp_path)
  assert load.read_card(tmp_path).figures['checkpoint']['step'] == 243


def test_the_card_of_a_file_is_in_the_file(digits, tmp_path):
  path, _ = _export(digits, 'safetensors', tmp_path / 'out')
  (path.parent / 'config.json').write_text('{}')  # of something else
  assert load.read_card(path) == load.load(path).card
  path.write_bytes(path.read_bytes()[:100])
  with pytest.raises(UserError, match='is damaged: '):
    load.read_card(path)


@pytest.mark.parametrize('read', [load.load, load.read_card])
def test_a_file_without_a_card_is_recognised_by_its_arrays(read, tmp_path):
  path = tmp_path / 'rmt.pth'
  torch_file.write(path, released_rmt.state_dict())
  with pytest.raises(
      UserError, match=r'of widths \(16, 32, 48, 64\) .* is none'
  ):
    read(path)


@pytest.mark.parametrize('name', ['config.json', 'README.md'])
def test_files_of_something_else_are_kept(digits, tmp_path, name):
  (tmp_path / name).write_text('{"model": "mine"}')
  with pytest.raises(UserError, match=f'{name} was not written by an export'):
    _export(digits, 'safetensors', tmp_path)
  assert (tmp_path / name).read_text() == '{"model": "mine"}'


def test_the_command(tmp_path, monkeypatch):
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
