"""Tests conversion of PyTorch checkpoints of RMT."""

import dataclasses
import io

import jax
import ml_dtypes
import numpy as np
import pytest
import released_rmt

from gswinrmt_jax import files, weights
from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import convert
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import load, torch_file


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  path = tmp_path_factory.mktemp('torch') / 'rmt.pth'
  torch_file.write(path, {'model': released_rmt.state_dict(), 'epoch': 299})
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
  """Of the model whose logits `released_rmt_test` compares."""
  found, model = load.load(folder), released_rmt.model()
  fields = {**found.card.fields, 'drop_path_rate': model.arch.drop_path_rate}
  card = dataclasses.replace(found.card, fields=fields)
  assert card.make_model() == model
  jax.tree.map(
      np.testing.assert_array_equal,
      dict(found.variables),
      weights.from_torch_state_dict(released_rmt.state_dict(), model),
  )
  assert found.card.num_classes == 10
  assert found.card.image_size == (224, 224) and found.card.crop == 0.875


def test_the_report_names_everything(checkpoint, folder, tmp_path, capsys):
  said = _convert(checkpoint, tmp_path / 'a', full_stages=(3, 4))
  assert 'entry model: rmt_t with widths 16 32 48 64, depths 1 1 2 1, n' in said
  assert ', 10 classes\n' in said
  assert f'loaded: {len(_arrays())} arrays' in said
  arrays = released_rmt.state_dict()
  del arrays['head.bias']
  arrays['more'] = np.zeros(3, np.float32)
  path = tmp_path / 'b.pth'
  torch_file.write(path, arrays)
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


def test_full_stages_precede_those_of_a_config_next_to_the_file(
    checkpoint, folder, tmp_path
):
  copy = tmp_path / 'rmt.pth'
  copy.write_bytes(checkpoint.read_bytes())
  card = (folder / 'config.json').read_text()
  (tmp_path / 'config.json').write_text(card)
  _convert(copy, tmp_path / 'a')
  assert load.load(tmp_path / 'a').card == load.load(folder).card
  _convert(copy, tmp_path / 'b', full_stages=(4,))
  assert load.load(tmp_path / 'b').card.fields['full_stages'] == [4]


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_half_precision_is_the_same_model(dtype, tmp_path):
  """The decay ranges are those of the release, not rounding errors."""
  half = np.dtype(getattr(ml_dtypes, dtype, np.float16))
  arrays = {
      name: array.astype(half) if array.dtype == np.float32 else array
      for name, array in released_rmt.state_dict().items()
  }
  torch_file.write(tmp_path / 'a.pth', {'model': arrays})
  said = _convert(tmp_path / 'a.pth', tmp_path / 'a', full_stages=(3, 4))
  assert 'decay_ranges' not in said
  fields = load.load(tmp_path / 'a').card.fields
  assert fields['decay_ranges'] == [4.0, 4.0, 6.0, 6.0]


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, capsys):
  arrays = released_rmt.state_dict()
  for name, value in (('head.bias', np.nan), ('norm.running_var', np.inf)):
    arrays[name] = np.full_like(arrays[name], value)
  torch_file.write(tmp_path / 'a.pth', arrays)
  arguments = ['convert', str(tmp_path / 'a.pth'), str(tmp_path / 'out')]
  assert main.main([*arguments, '--full-stages=3,4']) == 2
  printed = capsys.readouterr()
  for name in ('head.bias', 'norm.running_var'):
    assert f'differs: {name}: not all values are finite' in printed.out
  assert '2 that differ; nothing was written' in printed.err
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('stages', ['', ',', '3,,4', 'x'])
def test_full_stages_that_name_none_are_refused(stages, tmp_path, capsys):
  """Such as of a variable that is not set."""
  arguments = ['convert', 'a.pth', str(tmp_path / 'out')]
  assert main.main([*arguments, f'--full-stages={stages}']) == 2
  said = f"--full-stages is '{stages}': must be stages such as 3,4, or none"
  assert said in capsys.readouterr().err


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


def test_a_stage_that_is_not_there(checkpoint, tmp_path):
  with pytest.raises(UserError, match='must be stages from 1 to 4'):
    _convert(checkpoint, tmp_path / 'a', full_stages=(5,))
