"""From a PyTorch file to a folder of weights, and what reads it."""

import io
import json
import shutil

import jax
import numpy as np
import pytest
import random_variables
import released_rmt
import torch_pickles

from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import convert
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import fine_tuning
from gswinrmt_jax.weights import load


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
  """What is parameter or statistic among the released names."""
  aside = ('Relpos', 'num_batches_tracked')
  return [
      key
      for key in released_rmt.state_dict()
      if not any(part in key for part in aside)
  ]


def _convert(source, out, **settings):
  stream = io.StringIO()
  convert.convert(
      source, out, terminal=metrics_log.Terminal(stream), **settings
  )
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


def test_arguments_are_checked(capsys):
  assert main.main(['convert', 'a.pth', 'b', '--full-stages=x']) == 2
  assert "--full-stages is like 3,4, not 'x'" in capsys.readouterr().err
  assert main.main(['convert', 'a.pth', 'b']) == 2
  assert 'a.pth does not exist' in capsys.readouterr().err


def test_a_stage_that_is_not_there(checkpoint, tmp_path):
  with pytest.raises(UserError, match='are not in 1 to 4'):
    _convert(checkpoint, tmp_path / 'a', full_stages=(5,))


def test_a_changed_value_is_noticed(folder, tmp_path):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  card = json.loads((copy / 'config.json').read_text())
  card['crc32']['params'] += 1
  (copy / 'config.json').write_text(json.dumps(card))
  with pytest.raises(UserError, match='checksum of params'):
    load.load(copy)


def test_a_run_can_start_from_it(folder):
  """Another number of classes and another size of image."""
  model = released_rmt.model().clone(num_classes=4)
  fresh = random_variables.nested(model, (1, 40, 48, 3))
  moved = fine_tuning.transfer(fresh, load.load(folder).variables)
  assert moved.fresh.keys() == {'params/head/kernel', 'params/head/bias'}
  assert (
      'starts anew: params/head/bias (is (10,) in the weights, (4,) here)'
      in (moved.lines())
  )
  np.testing.assert_array_equal(
      moved.variables['batch_stats']['proj_norm']['var'],
      released_rmt.state_dict()['norm.running_var'],
  )
  np.testing.assert_array_equal(
      moved.variables['params']['head']['kernel'],
      fresh['params']['head']['kernel'],
  )
