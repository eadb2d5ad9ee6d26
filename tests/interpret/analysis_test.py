"""Tests the analysis of attention and gates against hand-computed values."""

import dataclasses
import io
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax import files, ops
from gswinrmt_jax.commands import main
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interpret import analysis
from gswinrmt_jax.interpret import attention_statistics as attention
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import load as weights_lib
from gswinrmt_jax.weights import safetensors_file

_SMALL = {
    'widths': (8, 16),
    'depths': (2, 1),
    'num_heads': (2, 2),
    'mlp_ratios': (1.0, 1.0),
    'layer_scale': (0.0, 0.0),
    'decay_ranges': (4.0, 4.0),
    'window_size': 3,
}


def _images():
  """Returns 32 x 28 images; the upper half is flat, the lower is noise."""
  images = np.random.default_rng(0).integers(0, 256, (3, 32, 28, 3), np.uint8)
  images[:, :16] = 90
  return images


def _analyzed(name, change=lambda params: params, **fields):
  model = factory.create_model(name, num_classes=10, **{**_SMALL, **fields})
  variables = random_variables.nested(model, (1, 32, 28, 3))
  params = change(jax.tree.map(np.array, variables['params']))
  return attention.analyze(
      model,
      {**variables, 'params': jax.tree.map(jnp.asarray, params)},
      lambda: iter([_images()]),
      size=(32, 28),
      mean=(0.5,) * 3,
      std=(0.25,) * 3,
  )


def _zeroed(*names):
  """Returns a change that zeroes these linear layers in every attention."""

  def change(params):
    for stage in ('stage1', 'stage2'):
      for block in params[stage].values():
        for name in names:
          layer = block['attention'][name]
          layer['kernel'][...] = 0
          layer['bias'][...] = 0
    return params

  return change


def _known(values):
  return [value for value in values if value is not None]


class TestAnalyze:

  def test_equal_scores_have_uniform_rows_and_half_open_gates(self):
    def change(params):
      for block in params['stage1'].values():
        block['attention']['decay_logit'][...] = 40  # gamma is 1
      return _zeroed('query', 'gate')(params)

    stage = _analyzed('retention_compact', change)[0]
    for heads in stage['entropy'].values():
      for head in heads:
        np.testing.assert_allclose(_known(head), 1, rtol=1e-6)
    for heads in stage['row_sum'].values():
      np.testing.assert_allclose(_known(heads[0]), 1, rtol=1e-6)
    np.testing.assert_allclose(_known(stage['gate']['mean']), 0.5)
    np.testing.assert_allclose(_known(stage['passed']), 0.5, rtol=1e-6)

  def test_equal_scores_of_all_pairs_have_uniform_rows(self):
    fields = {'decay': 'none', 'window_size': 0, 'full_stages': (1, 2)}
    stage = _analyzed('rmt_compact', _zeroed('query'), **fields)[0]
    assert stage['entropy'].keys() == stage['row_sum'].keys() == {'pairs'}
    for head in (*stage['entropy']['pairs'], *stage['row_sum']['pairs']):
      np.testing.assert_allclose(_known(head), 1, rtol=1e-6)

  def test_decay_narrows_rows_and_reach_is_that_of_its_rate(self):
    def change(params):
      for block in params['stage1'].values():
        # gamma is 3/4 and 15/16, as at the start of training.
        block['attention']['decay_logit'][...] = np.log([3, 15])
      return _zeroed('query')(params)

    stage = _analyzed('retention_compact', change)[0]
    # Rows of a full window of 3, from the head's gamma = 0.75 alone.
    entropies = []
    for i in range(3):
      row = 0.75 ** np.abs(i - np.arange(3.0))
      row /= row.sum()
      entropies.append(-(row * np.log(row)).sum() / np.log(3))
    found = _known(stage['entropy']['width'][0][: attention.DECILES])
    assert min(entropies) - 1e-6 < min(found) < max(found) < max(entropies)
    assert max(found) < 0.99 < min(_known(stage['entropy']['width'][1]))
    np.testing.assert_allclose(stage['decay']['now']['gamma'][0], 0.75)
    np.testing.assert_allclose(
        stage['decay']['start']['reach'][0], -1 / np.log(0.75)
    )

  def test_sigmoid_rows_of_zero_scores_sum_to_half_their_share(self):
    stage = _analyzed(
        'swat_compact', _zeroed('query'), decay='none', alibi='none'
    )[0]
    # sigmoid(0) / 3 for each of the 3 keys of a full window.
    for heads in stage['row_sum'].values():
      np.testing.assert_allclose(_known(heads[0][:-1]), 0.5, rtol=1e-6)
      assert heads[0][-1] < 0.5  # fewer keys, the same divisor
    assert stage['decay'] is None

  def test_a_closed_gate_passes_its_value(self):
    def change(params):
      gate = params['stage1']['block00']['attention']['gate']
      gate['kernel'][...] = 0
      gate['bias'][...] = -4
      return params

    # With `remat`, too, under which values could not be read.
    fields = {'depths': (1, 1), 'remat': 'blocks'}
    stage = _analyzed('retention_compact', change, **fields)[0]
    closed = _known(stage['gate']['closed'])
    np.testing.assert_allclose(closed, 1)
    np.testing.assert_allclose(
        _known(stage['passed']), 1 / (1 + np.exp(4)), rtol=1e-4
    )

  def test_the_sign_of_a_form_of_ones_own_decides(self, monkeypatch):
    def squares(scores, decay, mask, size):
      return scores**2 / size

    def signed(scores, decay, mask, size):
      return scores / size

    monkeypatch.setitem(ops.FORMS, 'squares', squares)
    monkeypatch.setitem(ops.FORMS, 'signed', signed)
    attention.check(Architecture(score_fn='squares'))
    with pytest.raises(UserError, match="score_fn='signed'"):
      attention.check(Architecture(score_fn='signed'))

  def test_weights_of_both_signs_are_refused(self):
    with pytest.raises(UserError, match="score_fn='linear'"):
      _analyzed('rmt_compact', score_fn='linear', full_stages=())
    with pytest.raises(UserError, match="gate_fn='swish': analyze takes sig"):
      _analyzed('retention_compact', gate_fn='swish')


class TestGroups:
  """Token rows 0 to 2 of 8 have flat windows; the tests mark their values."""

  def _grouped(self, name, **fields):
    arch = factory.create_model(name, num_classes=4, **_SMALL | fields).arch
    stage = attention._Stage(arch, 0, (32, 28))
    stage.see_images(_images())
    stage.find_deciles()
    stage.group(_images())
    return stage

  @pytest.fixture
  def stage(self):
    return self._grouped('retention_compact')

  @pytest.mark.parametrize('axis', ['width', 'height'])
  def test_rows_of_a_pass_belong_to_their_token(self, stage, axis):
    flat = np.zeros((3, 8, 7, 2))  # b y x n
    flat[:, :3] = (1.0, 2.0)
    lines = flat if axis == 'width' else flat.swapaxes(1, 2)
    weights = lines.swapaxes(2, 3)[..., None]  # b l n i, and one key
    stage.see(False, axis, weights)
    total, count = stage._sums[f'row_sum {axis}']
    assert total[0].tolist() == [3 * 18.0, 3 * 36.0]  # full windows, 3 x 6
    assert total[1 : attention.DECILES].sum() == 0
    assert total[-1].tolist() == [3 * 3.0, 3 * 6.0]  # the cut window
    assert count.sum(0).tolist() == [3 * 56, 3 * 56]

  def test_rows_of_all_pairs_belong_to_their_head(self):
    stage = self._grouped('rmt_compact', full_stages=(1,))
    weights = np.ones((3, 2, 56, 1))  # b n t, and one key
    weights[:, 1] = 2
    stage.see(False, 'pairs', weights)
    total, _ = stage._sums['row_sum pairs']
    assert total.sum(0).tolist() == [3 * 56, 2 * 3 * 56]

  def test_what_the_gate_passes(self, stage):
    gate = np.full((3, 8, 7, 8), 0.11)
    gate[:, :3] = 0.09
    stage.see_gate(False, gate, gate * 2)
    (total, count), (left, whole) = (
        stage._sums[name] for name in ('gate closed', 'passed')
    )
    np.testing.assert_array_equal(total[0], count[0])
    assert total[1 : attention.DECILES].sum() == 0
    np.testing.assert_allclose(left[0] / whole[0], 0.09)
    rest = slice(1, attention.DECILES)
    np.testing.assert_allclose(left[rest].sum() / whole[rest].sum(), 0.11)

  def test_a_value_of_either_sign_below_a_tenth_of_the_mean_is_closed(
      self, stage
  ):
    value = np.full((3, 8, 7, 8), 4.0)
    value[..., 1::2] *= -1
    value[..., :2] = 0.25, -0.25  # the mean size is 3.0625
    stage.see_value(False, value)
    mean, closed = (
        total.sum() / count.sum()
        for total, count in (
            stage._sums[f'swiglu {name}'] for name in ('mean', 'closed')
        )
    )
    np.testing.assert_allclose((mean, closed), (3.0625, 2 / 8))

  def test_sums_of_rows_do_not_change_their_entropy(self, stage):
    weights = np.full((3, 8, 2, 7, 3), 0.25)  # b l n i, and three keys
    stage.see(False, 'width', weights)
    entropy, counted = stage._sums['entropy width']
    stage.see(False, 'width', weights)
    again, twice = stage._sums['entropy width']
    np.testing.assert_allclose(again / twice.clip(1), entropy / counted.clip(1))
    np.testing.assert_allclose(entropy[0], counted[0])  # uniform over 3 keys
    weights[:, :, :, ::2] = 0  # Rows without weights choose nothing.
    stage.see(False, 'width', weights)
    more, thrice = stage._sums['entropy width']
    np.testing.assert_allclose(more / thrice.clip(1), entropy / counted.clip(1))
    assert 0 < (thrice - twice).sum() < counted.sum()


def test_deciles_are_those_of_whole_windows():
  arch = factory.create_model('retention_compact', num_classes=4, **_SMALL).arch
  stage = attention._Stage(arch, 0, (32, 28))
  images = np.random.default_rng(1).integers(0, 256, (4, 32, 28, 3), np.uint8)
  stage.see_images(images)
  variances = np.concatenate([x.ravel() for x in stage._variances])
  # Of 8 x 7 tokens, whole windows of 3 x 3 have 6 x 6, at either shift.
  assert len(variances) == 4 * 36 * len(stage._shifts)
  stage.find_deciles()
  want = np.quantile(variances, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
  np.testing.assert_array_equal(stage._edges, want)


def test_the_model_sees_normalised_images(monkeypatch):
  inputs, apply = [], Backbone.apply

  def noted(self, variables, image, **how):
    inputs.append(image)
    return apply(self, variables, image, **how)

  monkeypatch.setattr(Backbone, 'apply', noted)
  _analyzed('retention_compact')
  want = (_images() / 255 - 0.5) / 0.25
  np.testing.assert_allclose(inputs[0], want, rtol=1e-5, atol=1e-5)


def test_the_reach_of_a_decay_of_one_is_none():
  """It is infinite, which JSON cannot say."""
  fields = {**_SMALL, 'decay_ranges': (240.0, 240.0), 'decay': 'fixed'}
  arch = factory.create_model('retention_compact', num_classes=4, **fields).arch
  decay = attention._Stage(arch, 0, (32, 28))._decay({})
  assert decay['now']['gamma'] == [pytest.approx(0.75), 1.0]
  assert decay['now']['reach'] == [pytest.approx(-1 / np.log(0.75)), None]
  assert analysis._reach(decay) == '- -> -'
  rows = {'width': [[0.5] * attention.GROUPS] * 2}
  stage = {'entropy': rows, 'row_sum': rows, 'decay': decay}
  for heads in ([0, 1], [1]):  # one finite reach, none
    for when in decay.values():
      when['reach'] = [when['reach'][head] for head in heads]
    figure = _drawn(stage)
    figure.savefig(io.BytesIO())
    assert len(figure.axes) == 4


def test_each_column_of_the_table_has_its_own_figures():
  """The first decile and the last; means over passes, heads and blocks."""

  def rows(first, last):
    between = [9.0] * (attention.DECILES - 2)
    return {'height': [[first, *between, last, 8.0]]}

  decay = {'start': {'reach': [1.0, 3.0]}, 'now': {'reach': [2.0, 6.0]}}
  deciles = [None] * (attention.DECILES - 2)
  stage = {
      'entropy': rows(0.11, 0.12),
      'row_sum': rows(0.21, 0.22),
      'gate': {'mean': [0.31, *deciles, 0.32, 0.7]},
      'passed': [0.41, *deciles, 0.42, 0.7],
      'decay': decay,
      'rank': {'plain': 5.1, 'gated': 5.2},
  }
  said = analysis.table([{'source': 'runs/a', 'stages': [stage, stage]}])
  head, first, second, *_ = said.split('\n')
  weights = {'source': 'b/own/model.safetensors', 'stages': [stage]}
  assert analysis.table([weights]).split('\n')[1].startswith('own  ')
  names = 'stage', 'entropy', 'row sum', 'gate', 'passed', 'reach', 'rank'
  starts = [head.index(name) for name in names]
  cells = [
      line[start:end].strip()
      for line in (first, second)
      for start, end in zip(starts, [*starts[1:], None], strict=True)
  ]
  figures = [
      '0.11 -> 0.12',
      '0.21 -> 0.22',
      '0.31 -> 0.32',
      '0.41 -> 0.42',
      '2.00 -> 4.00',
      '5.10 -> 5.20',
  ]
  assert cells == ['1', *figures, '2', *figures]
  assert first.startswith('a ') and second.startswith(' ')


def test_a_learned_decay_is_the_mean_of_its_blocks():
  fields = {**_SMALL, 'decay': 'learned'}
  arch = factory.create_model('retention_compact', num_classes=4, **fields).arch
  logits = np.array([[0.0, 1.0], [2.0, -1.0]])
  blocks = {
      f'block{i}': {'attention': {'decay_logit': logits[i, None]}}
      for i in range(2)
  }
  decay = attention._Stage(arch, 0, (32, 28))._decay(blocks)
  gamma = (1 / (1 + np.exp(-logits))).mean(0)
  assert decay['now']['gamma'] == pytest.approx(gamma)
  assert decay['now']['reach'] == pytest.approx(-1 / np.log(gamma))


def test_the_rank_is_that_of_the_product_of_values_and_output():
  arch = factory.create_model('retention_compact', num_classes=4, **_SMALL).arch
  value, out = np.random.default_rng(0).normal(size=(2, 8, 8))
  value[:, 1:4] = 0  # head 1: a single direction of values
  out[5:] = 0  # head 2: a single direction of the output
  block = {'value': {'kernel': value}, 'out': {'kernel': out}}
  rank = attention._Stage(arch, 0, (32, 28))._rank({'b': {'attention': block}})
  assert rank == {'most': 4, 'plain': pytest.approx(1), 'gated': None}
  value[:, 1:4] = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 3)))[0]
  wanted = np.mean(
      [
          attention.effective_rank(value[:, head] @ out[head])
          for head in (slice(0, 4), slice(4, 8))
      ]
  )
  rank = attention._Stage(arch, 0, (32, 28))._rank({'b': {'attention': block}})
  assert rank['plain'] == pytest.approx(wanted)


def _drawn(stage):
  named = dict.fromkeys(('source', 'images', 'data', 'split'), '')
  return analysis.draw({**named, 'stages': [stage]})


def test_plots_leave_out_what_is_known():
  """Row sums of softmax, and the entropy of rows with one key."""
  ones = [[1.0] * (attention.GROUPS - 1) + [None]] * 2
  empty = [[None] * attention.GROUPS] * 2
  stage = {'entropy': {'width': empty}, 'row_sum': {'width': ones}, 'decay': {}}
  entropy, *rest = _drawn(stage).axes
  (text,) = entropy.texts
  assert text.get_text() == 'every row has one key'
  assert not entropy.lines
  assert len(rest) == 2  # gate and reach


@pytest.mark.parametrize(('largest', 'limit'), [(0.5, 1.05), (2.5, 2.625)])
def test_large_row_sums_are_inside_the_plot(largest, limit):
  """Those of a form of one's own may be above 1."""
  rows = {'width': [[largest] * attention.GROUPS]}
  entropy = {'width': [[0.5] * attention.GROUPS]}
  stage = {'entropy': entropy, 'row_sum': rows, 'decay': {}}
  first, second, *_ = _drawn(stage).axes
  assert first.get_ylim() == (0, 1.05)
  assert second.get_ylim() == (0, pytest.approx(limit))


class TestWindowVariance:

  def test_it_is_that_of_the_pixels_under_the_window(self):
    images = _images()
    blocks = np.array([0, 0, 0, 1, 1, 1, 2, 2]), np.array([0, 0, 1, 1, 1, 2, 2])
    found = attention.window_variance(images, blocks, 4)
    grey = images.mean(-1) / 255
    assert found.shape == (3, 8, 7)
    np.testing.assert_allclose(
        found[1, 4, 3], grey[1, 12:24, 8:20].var(), rtol=1e-9
    )
    np.testing.assert_allclose(found[:, 0], 0, atol=1e-12)

  def test_the_last_window_ends_with_the_image(self):
    found = attention.window_variance(
        _images()[:, :30, :27], (np.repeat([0, 1], 4), np.zeros(7, int)), 4
    )
    grey = _images()[:, :30, :27].mean(-1) / 255
    np.testing.assert_allclose(found[2, 7, 6], grey[2, 16:].var(), rtol=1e-9)


def test_effective_rank_counts_equal_directions():
  assert attention.effective_rank(np.eye(5)) == pytest.approx(5)
  assert attention.effective_rank(np.diag([3.0, 3, 0, 0])) == pytest.approx(2)


def test_a_pass_of_one_key_does_not_hide_the_other():
  passes = {'height': [[None, 0.5, None]], 'width': [[0.25, 1.0, None]]}
  assert analysis._mean(passes) == [0.25, 0.75, None]


def test_both_gates_count_in_the_rank():
  def change(params):
    for stage in ('stage1', 'stage2'):
      for block in params[stage].values():
        for gate in ('value_gate', 'gate'):
          block['attention'][gate]['kernel'][...] = 0
        # Each closes half of a head's 8 channels; 2 are open in both.
        values = block['attention']['value_gate']['bias'].reshape(-1, 8)
        values[:, :4], values[:, 4:] = 0, 1
        block['attention']['gate']['bias'][::2] = -40
    return params

  # Without decay and ALiBi, as in a test above, whose programs are used again.
  none = {'decay': 'none', 'alibi': 'none'}
  rank = _analyzed('swat_compact', change, gate=True, **none)[1]['rank']
  assert rank['gated'] < 2 + 1e-6 and rank['plain'] > 4


def test_command_writes_a_report_of_weights(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  name, own = 'retention_compact', tmp_path / 'own'
  model = factory.create_model(name, num_classes=10, **_SMALL)
  card = card_lib.Card(
      name=name,
      fields=factory.resolve(name, _SMALL),
      num_classes=10,
      image_size=(32, 28),
      mean=(0.5,) * 3,
      std=(0.25,) * 3,
  )
  own.mkdir()
  variables = random_variables.nested(model, (1, 32, 28, 3))
  safetensors_file.write(own / 'model.safetensors', variables, card)
  files.write_json(own / 'config.json', card.to_dict())
  arguments = ['--data=digits', '--images=3', f'--out={tmp_path}']
  assert main.main(['analyze', str(own), *arguments]) == 0
  path = tmp_path / 'analysis_own_digits_val.json'
  report = json.loads(path.read_text())
  assert report['images'] == 3 and len(report['stages']) == 2
  for stage in report['stages']:
    assert len(stage['gate']['mean']) == attention.GROUPS
  assert path.with_suffix('.png').stat().st_size > 10_000
  assert 'entropy' in capsys.readouterr().out


@pytest.fixture
def unmeasured(monkeypatch):
  """Fails if anything is measured."""
  monkeypatch.setattr(attention, 'analyze', lambda *args, **how: 1 / 0)


@pytest.mark.usefixtures('unmeasured')
def test_two_reports_of_one_name_are_refused(tmp_path):
  with pytest.raises(UserError, match='the reports of digits_small and digits'):
    analysis.analyze_runs(['digits_small'] * 2, data='digits', out=tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures('unmeasured')
def test_every_model_is_checked_before_the_first_is_measured(
    monkeypatch, tmp_path
):
  load = weights_lib.load

  def changed(path, **how):
    found = load(pathlib.Path('digits_small'), **how)
    if path.name == 'first':
      return found
    card = dataclasses.replace(
        found.card, fields={**found.card.fields, 'score_fn': 'linear'}
    )
    return dataclasses.replace(found, card=card)

  replaced = {**vars(weights_lib), 'load': changed}
  monkeypatch.setattr(
      analysis, 'weights_lib', types.SimpleNamespace(**replaced)
  )
  with pytest.raises(UserError, match="score_fn='linear'"):
    analysis.analyze_runs(['first', 'second'], data='digits', out=tmp_path)


def test_images_are_read_in_batches_up_to_their_number():
  records = datasets.load('digits', 'val')
  batches = list(analysis._batches(records, 70))
  assert [len(batch) for batch in batches] == [50, 20]
  want = records.gather(np.arange(70))['image']
  np.testing.assert_array_equal(np.concatenate(batches), want)
