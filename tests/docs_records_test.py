"""Tests that the documents quote the results on record."""

import functools
import itertools
import json
import re
import types

import deep_shapes
import numpy as np
import pages
import paper
import parameter_counts
import pytest
import runs as results
import tables

from gswinrmt_jax.commands import recipe_files

RESULTS = pages.ROOT / 'results'
MODELS = 'RMT', 'Retention', 'SWAT'
# What the documents call the runs of 50 epochs on the original pixels; seeds
# other than 0 are named, as in 'RMT, 6e-4, seed 1'.
RUNS = {
    'RMT, 3e-4': 'cifar10_rmt',
    'RMT, 6e-4': 'cifar10_rmt_6e4',
    'RMT, 6e-4, seed 1': 'cifar10_rmt_6e4_seed1',
    'Retention, 3e-4': 'cifar10_retention',
    'Retention, 6e-4': 'cifar10_retention_6e4',
    'SWAT, 3e-4': 'cifar10_swat',
    'SWAT, 6e-4': 'cifar10_swat_6e4',
}
EPOCHS = 10, 20, 30, 40, 50
COLUMNS = *EPOCHS, 'test'


@functools.cache
def _run(name):
  return results.read(RESULTS / f'{name}.json')


def _json(name):
  return json.loads((RESULTS / f'{name}.json').read_text())


def _rows(text, *columns):
  """Returns the cells of each row of the table with these columns."""
  head = tables.table(columns, ()).splitlines()[0]
  return pages.rows(text, f'\n{head}')


def _percent(share, missing=tables.NOTHING):
  return missing if share is None else f'{100 * share:.2f}'


def _texts(figures):
  return [f'{figure:.2f}' for figure in figures]


def _scores(label):
  """Returns validation and test accuracies in percent, one for each column.

  Args:
    label: One of `RUNS`, or such as 'RMT, paper'.
  """
  if label in RUNS:
    run = _run(RUNS[label])
    return 100 * np.array([*map(run.curve.get, EPOCHS), run.test_score])
  printed = paper.CIFAR10.models[label.removesuffix(', paper').lower()]
  return np.array([*map(printed.curve.get, EPOCHS), printed.test])


def _mean(run, first, last):
  """Returns the mean validation accuracy of some epochs, in percent."""
  return 100 * np.mean([run.curve[epoch] for epoch in range(first, last + 1)])


@pytest.fixture(scope='module')
def recorded():
  return results.group(results.gather([RESULTS])[0])[0]


@pytest.fixture
def page():
  return pages.read('reproduction')


# CIFAR-10 by the paper's protocol.


def test_the_paper_s_tables(recorded, page):
  """The default reading of both sets of pixels, and the one as in DeiT."""
  found = {}
  for one in filter(lambda setting: setting.benchmark, recorded):
    augment, optimizer = one.config.augment, one.config.optimizer
    key = augment.rand_augment_set, augment.rand_augment_ops
    key = (one.runs[0].images, one.config.dtype, *key)
    key = (*key, optimizer.learning_rate)
    found.setdefault(key, []).append(one)
  jpeg = 'JPEG of quality 75'
  for key in (
      ('', 'float32', 'torchvision', 2, 3e-4),
      (jpeg, 'float32', 'torchvision', 2, 3e-4),
      (jpeg, 'float32', 'timm', 2, 1e-4),
  ):
    (setting,) = found[key]
    assert tables.paper_curves(setting) in page


@pytest.mark.parametrize('label', RUNS)
def test_runs_are_what_the_documents_call_them(label):
  run, (model, rate, *seed) = _run(RUNS[label]), label.split(', ')
  assert run.label == model.lower()
  assert run.config.optimizer.learning_rate == float(rate)
  assert seed == ([f'seed {run.config.seed}'] if run.config.seed else [])


@pytest.mark.parametrize('model', MODELS)
def test_accuracies_at_twice_the_rate(model, page):
  """Each run has a row."""
  part = pages.section(page, f'**{model} at twice the rate')
  labels = [label for label in RUNS if label.startswith(f'{model}, ')]
  assert _rows(part, '', *COLUMNS) == [
      [label.removeprefix(f'{model}, '), *_texts(_scores(label))]
      for label in (f'{model}, paper', *labels)
  ]


@pytest.mark.parametrize(
    ('model', 'columns'),
    [
        (
            'RMT',
            'RMT, 6e-4 | RMT, 3e-4 | Retention, 6e-4 | Retention, 3e-4 | '
            'gain of RMT | gain of Retention',
        ),
        (
            'SWAT',
            'SWAT, 6e-4 | SWAT, 3e-4 | Retention, 6e-4 | RMT, 6e-4 | '
            'gain of SWAT',
        ),
    ],
)
def test_means_of_epochs_at_twice_the_rate(model, columns, page):
  columns, expected = columns.split(' | '), []
  for ends in ((8, 12), (16, 20), (26, 30), (36, 40), (46, 50)):
    means = {label: _mean(_run(name), *ends) for label, name in RUNS.items()}
    for one in MODELS:
      means[f'gain of {one}'] = means[f'{one}, 6e-4'] - means[f'{one}, 3e-4']
    row = _texts(means[column] for column in columns)
    expected.append(['{} to {}'.format(*ends), *row])
  part = pages.section(page, f'**{model} at twice the rate')
  assert _rows(part, 'epochs', *columns) == expected


def test_the_runs_in_the_readme():
  readme = (pages.ROOT / 'README.md').read_text()
  expected = []
  for model in MODELS:
    expected.append([model, 'paper', *_texts(_scores(f'{model}, paper'))])
    for rate in ('3e-4', '6e-4'):
      scores = _scores(f'{model}, {rate}')
      expected.append(['', f'ours, {rate}', *_texts(scores)])
  assert _rows(readme, '', '', *COLUMNS) == expected
  fast, usual, printed = (
      np.array([_scores(f'{model}, {rate}')[-1] for model in MODELS])
      for rate in ('6e-4', '3e-4', 'paper')
  )
  seeds = [_scores(f'RMT, 6e-4{seed}')[-1] for seed in ('', ', seed 1')]
  for sentence, figures in (
      (
          "{} points below the paper's for RMT, {} for Retention and {} for "
          'SWAT.',
          printed - usual,
      ),
      ("it is {}, {} and {} points above the paper's", fast - printed),
      ('two of RMT ({} and {} %)', seeds),
  ):
    assert sentence.format(*_texts(figures)) in pages.prose(readme)


def test_the_cost_of_the_jpeg_copy(page):
  """One row of each set of pixels, and their difference."""
  part = pages.section(page, '**What the JPEG copy costs.**')
  epochs = 1, 4, *range(10, 51, 5)
  runs = [_run('cifar10_rmt'), _run('jpeg75/cifar10_rmt')]
  scores = [
      [*(run.curve[epoch] for epoch in epochs), run.test_score] for run in runs
  ]
  gains = [100 * (one - other) for one, other in zip(*scores, strict=True)]
  assert _rows(part, '', *epochs, 'test') == [
      ['original', *map(_percent, scores[0])],
      ['JPEG copy', *map(_percent, scores[1])],
      ['gain', *map(tables.signed, gains)],
  ]
  original, copy = (_mean(run, 10, 50) for run in runs)
  assert f'gain {original - copy:.2f} points on average' in part


def test_the_readings(page):
  """Each row but the paper's is a recipe, trained at some rate."""
  part = pages.section(page, '**All readings of RMT, JPEG copy.**')
  epochs = 1, 4, *EPOCHS
  columns = 'reading', 'peak rate', 'linear layers', *epochs, 'test'
  *rows, last = _rows(part, *columns)
  assert last[-len(COLUMNS) :] == _texts(_scores('RMT, paper'))
  named = part.partition('The rows are')[2].partition('The command')[0]
  names = re.findall(r'`results/(.*?)\.json`', named)
  for name, (reading, rate, start, *cells) in zip(names, rows, strict=True):
    run = _run(name)
    recipe = recipe_files.load(f'cifar10_rmt{reading.strip("`")}', [])
    assert recipe.augment == run.config.augment
    assert float(rate) == run.config.optimizer.learning_rate
    assert start == run.config.model.linear_start
    shares = [*map(run.curve.get, epochs), run.test_score]
    assert cells == [_percent(share) for share in shares]


# Small images.

# The four runs of the weights that ship.
FIRST = 'jpeg75/cifar10_small'
SECOND = 'jpeg75/cifar10_small_restart'
THIRD = 'cifar10_small_restart'
FOURTH = 'cifar10_small_restart2'


def test_the_runs_of_the_weights_that_ship(page):
  expected = []
  for name in (FIRST, SECOND, THIRD, FOURTH):
    run = _run(name)
    best = run.summary['best']
    prefix = {'raw': '', 'ema': 'ema_'}[best['weights']]
    expected.append(
        [
            str(run.config.num_epochs),
            str(run.config.seed),
            f'{best["epoch"]}, {best["weights"].replace("ema", "EMA")}',
            _percent(best[f'val_{prefix}accuracy']),
            _percent(best[f'test_{prefix}accuracy']),
            f'`results/{name}.json`',
        ]
    )
  rows = pages.rows(page, '| run | pixels | epochs |')
  assert [row[2:] for row in rows] == expected


@pytest.mark.parametrize(
    ('columns', 'runs', 'epochs', 'missing'),
    [
        (
            'run 2 | EMA | run 3 | EMA | run 4 | EMA',
            [SECOND, SECOND, THIRD, THIRD, FOURTH, FOURTH],
            '1 2 4 8 12 16 20 22 25',
            '',
        ),
        (
            'AdamW | Muon | Muon, EMA',
            [f'{FIRST}_adamw', FIRST, FIRST],
            '1 2 4 6 8 10 14 20 24 28',
            '',
        ),
        (
            'RMT | Retention | SWAT | RMT, EMA | Retention, EMA | SWAT, EMA',
            [f'{FIRST}_rmt', FIRST, f'{FIRST}_swat'] * 2,
            '1 2 4 6 8 10 12 14 15 20 24 28',
            tables.NOTHING,
        ),
    ],
)
def test_the_curves_of_small_images(columns, runs, epochs, missing, page):
  """Of the raw weights, or of their average (EMA)."""
  columns, epochs = columns.split(' | '), epochs.split()
  cells = []
  for column, name in zip(columns, runs, strict=True):
    score = 'val_ema_accuracy' if column.endswith('EMA') else 'val_accuracy'
    curve = {str(entry['epoch']): entry[score] for entry in _run(name).epochs}
    cells.append([_percent(curve.get(epoch), missing) for epoch in epochs])
  expected = [list(row) for row in zip(epochs, *cells, strict=True)]
  assert _rows(page, 'epoch', *columns) == expected


# Other data.


def test_tiny_imagenet_ablations_and_digits(recorded, page):
  found = {
      (one.config.data.name, one.config.num_epochs): one
      for one in recorded
      if not one.benchmark
  }
  assert tables.curves(found['tiny_imagenet_100', 4]) in page
  changes = tables.ablate(found['cifar10', 2], 'retention')
  assert [one.change.n for one in changes] == [3] * 4
  assert tables.ablation_table('retention', changes) in page
  digits = found['digits', 12].variants.values()
  cells = [tables.average(runs, lambda run: run.test_score) for runs in digits]
  assert _rows(page, *MODELS) == [[f'{100 * one.mean:.2f} %' for one in cells]]


def _sized(model, size):
  """Returns a cost that has only the parameters: operations take long."""
  params = deep_shapes.variable_shapes(model, (*size, 3))['params']
  return types.SimpleNamespace(parameters=parameter_counts.size(params))


def _average(shares):
  return tables.percent(tables.mean(shares))


def test_camvid(monkeypatch):
  monkeypatch.setattr(results.cost, 'count', _sized)
  text = pages.read('segmentation')
  records, _ = results.gather([RESULTS / 'camvid'])
  (setting,), _ = results.group(records)
  assert [len(runs) for runs in setting.variants.values()] == [2] * 4
  assert tables.curves(setting) in text
  assert tables.classes(setting) in text
  pairs = [*itertools.product(('val', 'test'), ('mean_iou', 'pixel_accuracy'))]
  expected = []
  for runs in setting.variants.values():
    bests = [run.summary['best'] for run in runs]
    expected.append(
        [
            f'{runs[0].cost.parameters:,}',
            *(
                _average(best[f'{split}_{score}'] for best in bests)
                for split, score in pairs
            ),
        ]
    )
  rows = pages.rows(text, '| backbone | parameters |')
  assert [row[1:] for row in rows] == expected
  stored = _json('camvid/stored_labels')
  rows = pages.rows(text, '| backbone | validation mean IoU |')
  for (_, *cells), name in zip(
      rows, ('rmt', 'retention', 'swat', 'conv'), strict=True
  ):
    runs = [stored[f'{name}_s{seed}'] for seed in (0, 1)]
    assert cells == [
        _average(run[split][score] for run in runs) for split, score in pairs
    ]


def test_three_classes_of_tiny_imagenet():
  page = pages.read('training')
  rows = pages.rows(page, '| | more arguments | trained parameters |')
  expected = {}
  for row, name in (
      ('linear probe', 'probe'),
      ('layer-wise rates', 'layers'),
      ('all alike', 'all'),
      ('from scratch', 'scratch'),
  ):
    last = _run(f'folder/three_{name}').summary['last']
    expected[row] = _percent(last['val_ema_accuracy'])
  assert {row[0]: row[-1].strip('*') for row in rows} == expected


def test_fifty_classes_of_tiny_imagenet():
  page, epochs = pages.read('training'), (2, 4, 6, 8, 10)
  rows = _rows(page, '', 'more arguments', *epochs)
  expected = {}
  for row, name in (
      ('all alike', 'tiny_all'),
      ('from scratch', 'tiny_scratch'),
  ):
    curve = _run(f'folder/{name}').curve
    expected[row] = [_percent(curve[epoch]) for epoch in epochs]
  assert {
      row: [cell.strip('*') for cell in cells] for row, _, *cells in rows
  } == expected


# What was measured in trained models.


def test_where_maps_point():
  found = _json('where_it_looks')
  rows = pages.rows(pages.read('models'), '| stage | tokens |')
  assert found['images'] == 500
  assert [row[2:] for row in rows] == [
      [
          f'{100 * stage["cam_on_digit"]:.1f} %',
          f'{100 * stage["random_on_digit"]:.1f} %',
          f'{100 * stage["cam_empty"]:.1f} %',
          f'{stage["gate_on_digit"]:.2f}',
          f'{stage["gate_elsewhere"]:.2f}',
      ]
      for stage in found['stages']
  ]


def _ends(values):
  """Formats the flattest and the most informative decile, as the page."""
  if not values or values[0] is None:
    return ''
  first, last = (f'{values[place]:.2f}' for place in (0, 9))
  return '1' if first == last == '1.00' else f'{first} → {last}'


def _over_passes(passes):
  rows = np.array([row for rows in passes.values() for row in rows], float)
  return [None if np.isnan(value) else value for value in rows.mean(0)]


@pytest.mark.parametrize(
    ('names', 'columns'),
    [
        (
            ['small'],
            'stage | tokens | window | entropy | gate | share below 0.1 | '
            'passed | rank',
        ),
        (
            ['small_swat'],
            'stage | tokens | window | entropy | row sum | `swiglu` | '
            'share below a tenth of its mean | rank',
        ),
        (
            MODELS,
            'model, stage | tokens | entropy | row sum | gate | '
            'share below 0.1 | passed | rank',
        ),
    ],
)
def test_analyses(names, columns):
  columns, expected = columns.split(' | '), []
  for name in names:
    stages = _json(f'jpeg75/analysis_cifar10_{name.lower()}')['stages']
    for number, stage in enumerate(stages, 1):
      gate, swiglu = (stage.get(key, {}) for key in ('gate', 'swiglu'))
      ranks = [stage['rank'][key] for key in ('plain', 'gated')]
      most = f' of {stage["rank"]["most"]}' if 'window' in columns else ''
      cells = {
          'stage': str(number),
          'model, stage': f'{name}, {number}',
          'tokens': '\N{MULTIPLICATION SIGN}'.join(map(str, stage['tokens'])),
          'window': str(stage['window']),
          'entropy': _ends(_over_passes(stage['entropy'])),
          'row sum': _ends(_over_passes(stage['row_sum'])),
          'gate': _ends(gate.get('mean')),
          'share below 0.1': _ends(gate.get('closed')),
          '`swiglu`': _ends(swiglu.get('mean')),
          'share below a tenth of its mean': _ends(swiglu.get('closed')),
          'passed': _ends(stage.get('passed')),
          'rank': ', '.join(f'{rank:.1f}' for rank in ranks if rank) + most,
      }
      expected.append([cells[column] for column in columns])
  assert _rows(pages.read('analysis'), *columns) == expected
