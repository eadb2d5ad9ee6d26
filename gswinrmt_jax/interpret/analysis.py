"""Analyses of trained models: JSON and plots of each, one table of all."""

from collections.abc import Sequence
import functools
import pathlib
from typing import Any

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.interpret import attention_statistics as statistics
from gswinrmt_jax.terminal import printable, Terminal
from gswinrmt_jax.weights import load as weights_lib
from gswinrmt_jax.weights import safetensors_file

_BATCH_SIZE = 50
_COLORS = ('C0', 'C1')  # of the two passes; full attention has one
_COLUMNS = 'stage', 'entropy', 'row sum', 'gate', 'passed', 'reach', 'rank'
_ARROWS = (
    'a -> b: in the flattest and the most informative tenth of the windows;\n'
    'reach of the mean gamma: in a new model, and now; rank: without and with\n'
    'the gate'
)


def analyze_runs(
    sources: Sequence[str],
    *,
    step: int | str = 'best',
    which: str | None = None,
    data: str | None = None,
    split: str = 'val',
    data_dir: str | None = None,
    images: int = 1000,
    out: pathlib.Path | None = None,
) -> None:
  """Analyzes models, writes a report of each, and prints a table of all.

  A report has the source of the weights, the data, and the stages of
  `attention_statistics.analyze`. It is written to `analysis_SPLIT_STEP.json`,
  with a page of plots in the `.png` of the same name. The name follows the
  rules of `evaluate_run`; in an `out`, the names of the run and its data set
  precede the split, as path and data set do for weights without a run.

  `images` is the number of images to measure, from the start of the split; all
  other arguments are those of `evaluate_run`. Without an `out`, reports go to
  each run's folder, or the current folder for weights without a run.

  Raises:
    UserError: If weights or data cannot be used, weights are not finite, the
      attention form cannot be analysed, or two reports would have one name.
  """
  terminal = Terminal()
  ready = {}  # by the resolved file of the report
  for source in sources:  # All are checked before the first is measured.
    weights = weights_lib.load(
        pathlib.Path(source), step=step, which=which, warn=terminal.say
    )
    weights.check_is_classifier()
    weights.check_finite()
    model = weights.card.make_model(dtype='float32')
    statistics.check(model.arch)
    named = evaluate_run.data_of(weights, data, split, data_dir)
    path = evaluate_run.report_path(
        'analysis',
        source,
        weights,
        named[0],
        split,
        data_dir=named[2],
        out=out,
    )
    if path.resolve() in ready:
      _, other, *_ = ready[path.resolve()]
      raise UserError(
          f'the reports of {other.origin} and {weights.origin} would both be '
          f'{path}: analyze them in two calls, with different --out'
      )
    files.check_can_write(path)
    size = weights.card.image_size
    records = datasets.load(
        *named,
        image_size=size,
        eval_crop=weights.card.crop_at(size),
        storage='decode',
    )
    ready[path.resolve()] = path, weights, model, named[:2], records
  reports = []
  for path, *inputs in ready.values():
    report = _analyze(*inputs, images, terminal)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, report)
    plot, written = path.with_suffix('.png'), str(path)
    with terminal.warn_if_not_written(plot.name):
      with files.replaced(plot) as part:
        draw(report).savefig(part, format='png')
      written += ' and .png'
    terminal.say(f'{report["source"]}: {written}')
    reports.append(report)
  terminal.say(table(reports))


def table(reports: Sequence[dict[str, Any]]) -> str:
  """Returns the text table of several reports, one line per stage.

  The last two lines explain the columns.
  """
  rows = [('', *_COLUMNS)]
  for report in reports:
    source = pathlib.Path(report['source'])
    # Weights in a folder all have the same name.
    named = source.parent if source.name == safetensors_file.NAME else source
    name = named.name
    for number, stage in enumerate(report['stages'], start=1):
      row = (
          name if number == 1 else '',
          str(number),
          _ends(_mean(stage['entropy'])),
          _ends(_mean(stage['row_sum'])),
          _ends(stage.get('gate', {}).get('mean')),
          _ends(stage.get('passed')),
          _reach(stage['decay']),
          _arrow(stage['rank']['plain'], stage['rank']['gated']),
      )
      rows.append(row)
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = []
  for row in rows:
    cells = [cell.ljust(n) for cell, n in zip(row, widths, strict=True)]
    lines.append('  '.join(cells).rstrip())
  return '\n'.join([*lines, _ARROWS])


def draw(report: dict[str, Any]) -> Any:
  """Returns the page of plots of a report: a row per stage.

  Softmax has no plot of its row sums, which are 1.
  """
  # Without `pyplot`: no window, no global state. Imported when needed.
  from matplotlib.figure import Figure

  stages = report['stages']
  sums = [np.array([*stage['row_sum'].values()], float) for stage in stages]
  kinds = {'entropy': 'rows of attention', 'row_sum': 'sum of a row of weights'}
  if all(np.allclose(each[~np.isnan(each)], 1) for each in sums):
    del kinds['row_sum']
  columns = len(kinds) + 2
  figure = Figure(
      figsize=(3.75 * columns, 3 * len(stages)), layout='constrained', dpi=120
  )
  title = (
      f'{report["source"]}: {report["images"]} images of {report["data"]} '
      f'{report["split"]}'
  )
  figure.suptitle(printable(title), parse_math=False)
  grid = figure.subplots(len(stages), columns, squeeze=False)
  for number, (row, stage) in enumerate(zip(grid, stages, strict=True), 1):
    *weights, gate, reach = row
    for axes, (kind, title) in zip(weights, kinds.items(), strict=True):
      axes.set_title(title, fontsize=9)
      passes = stage[kind].items()
      values = np.array([*stage[kind].values()], float)
      # Row sums of a form of one's own may be larger than 1.
      axes.set_ylim(0, np.nanmax(values, initial=1) * 1.05)
      if np.isnan(values).all():
        axes.text(4.5, 0.5, 'every row has one key', ha='center')
        continue
      for color, (name, heads) in zip(_COLORS, passes, strict=False):
        _by_group(axes, _mean({name: heads}), color, f'{name}, all heads', 2)
        for head in heads:
          _by_group(axes, head, color, None, 0.5)
    weights[0].set_ylabel(f'stage {number}: entropy / log(keys)')
    if 'gate' in stage:
      _by_group(gate, stage['gate']['mean'], 'C2', 'mean of G1', 2)
      _by_group(gate, stage['gate']['closed'], 'C3', 'share of G1 < 0.1', 2)
      _by_group(gate, stage['passed'], 'C4', 'share passed', 2)
      gate.set_title('gate', fontsize=9)
      gate.set_ylim(0, 1.05)
    elif 'swiglu' in stage:
      _by_group(gate, stage['swiglu']['mean'], 'C2', 'mean of abs', 2)
      _by_group(gate, stage['swiglu']['closed'], 'C3', 'share near 0', 2)
      gate.set_title('v1 SiLU(v2)', fontsize=9)
      gate.set_ylim(bottom=0)
    else:
      gate.set_axis_off()
    for axes in (*weights, gate):
      axes.set_xlabel('decile of variance under the window (c: cut)')
      axes.set_xticks(
          range(statistics.GROUPS), [*range(1, statistics.DECILES + 1), 'c']
      )
      if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
    if stage['decay']:
      heads = np.arange(len(stage['decay']['now']['reach']))
      for when, label, offset in (('start', 'new', -0.2), ('now', 'now', 0.2)):
        values = np.array(stage['decay'][when]['reach'], float)
        reach.bar(heads + offset, values, 0.4, label=label)
      reach.set(xlabel='head', ylabel='tokens', xticks=heads)
      reach.margins(y=0.3)  # room for the legend
      reach.set_title('reach of the decay, -1 / log(gamma)', fontsize=9)
      reach.legend(fontsize=7, frameon=False)
    else:
      reach.set_axis_off()
  return figure


def _batches(records, count):
  """Yields the first `count` images in batches."""
  batches = batches_lib.eval_batches(records, batch_size=_BATCH_SIZE)
  for start, batch in zip(range(0, count, _BATCH_SIZE), batches, strict=False):
    yield batch['image'][: count - start]


def _analyze(weights, model, named, records, images, terminal):
  """Returns the report of one model on `named`, a data set and its split."""
  name, split = named
  card = weights.card
  images = min(images, len(records))
  total = -(-images // _BATCH_SIZE)
  stages = statistics.analyze(
      model,
      weights.variables,
      functools.partial(_batches, records, images),
      size=card.image_size,
      mean=card.mean,
      std=card.std,
      progress=lambda done: terminal.progress(
          f'{weights.origin}: batch {done}/{total}'
      ),
  )
  return {
      'source': weights.origin,
      'step': weights.step,
      'weights': weights.which,
      'data': name,
      'split': split,
      'images': images,
      'stages': stages,
  }


def _by_group(axes, values, color, label, width):
  """Draws the deciles as a line, cut windows as a point."""
  values = np.array([np.nan if v is None else v for v in values])
  deciles = np.arange(statistics.DECILES)
  axes.plot(deciles, values[:-1], color=color, lw=width, label=label)
  axes.plot([statistics.DECILES], values[-1:], 'o', ms=3, color=color)


def _mean(passes):
  """Returns the mean over passes and heads for each group."""
  rows = np.concatenate([*passes.values()]).astype(float)  # None is NaN.
  # A pass may have but one key, and no entropy.
  return np.ma.masked_invalid(rows).mean(0).tolist()


def _ends(values):
  return _arrow(values[0], values[statistics.DECILES - 1]) if values else ''


def _reach(decay):
  if not decay:
    return ''
  reaches = (decay[when]['reach'] for when in ('start', 'now'))
  return _arrow(*(None if None in each else np.mean(each) for each in reaches))


def _arrow(*ends):
  return ' -> '.join('-' if end is None else f'{end:.2f}' for end in ends)
