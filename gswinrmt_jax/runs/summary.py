"""The summary of a run, `summary.json`: its last and its best checkpoint."""

from collections.abc import Mapping, Sequence
import pathlib
import statistics
from typing import Any

import jax

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.runs.scores import better, SCORES

# Label, split, score, format of each row. A run has only those of its task.
FIGURES = tuple(
    (f'{named} {score.label}', split, name, score.form)
    for name, score in SCORES.items()
    for named, split in (('validation', 'val'), ('test', 'test'))
    if score.shown or split == 'test'
)
# In the file, but not in the table: the IoU or average precision of each class
# of a segmenter or detector, and of its average.
_BY_CLASS = tuple(
    f'test_{prefix}class_{name}'
    for prefix in ('', raw_and_ema.PREFIX)
    for name in ('iou', 'ap', 'mask_ap')
)
_FILE = 'summary.json'


def parameter_count(state: Any) -> int:
  """Returns the number of parameters of a train state."""
  return sum(leaf.size for leaf in jax.tree.leaves(state.params))


def summarize(
    facts: Mapping[str, Any],
    schedule: Any,
    entries: Sequence[Mapping[str, Any]],
    tested: Mapping[int, Mapping[str, Any]],
    *,
    last: int,
    best: int,
) -> dict[str, Any]:
  """Returns the results of the last and of the best checkpoint.

  In each result, `weights` says whether the raw weights or their EMA are better
  on validation data.

  Args:
    facts: What is known without training: model, data, seed, parameters.
    schedule: The run's `train.schedule.Schedule`.
    entries: The entries of `metrics.jsonl`.
    tested: Scores on the test split by step; empty if the schedule was not
      finished. Those of the EMA are called `ema_NAME`.
    last: The last step.
    best: The step with the best validation score, of the raw weights or of
      their EMA.
  """
  epochs = [entry for entry in entries if entry['kind'] == 'epoch']
  # If somebody truncated the log, a checkpoint may have no entry.
  by_step = {entry['step']: entry for entry in epochs}
  per_epoch = schedule.num_examples / schedule.batch_size
  summary = {
      **facts,
      'steps': last,
      'total_steps': schedule.total_steps,
  }
  if epochs:
    summary['seconds_per_epoch'] = statistics.median(
        entry['seconds'] / entry['steps'] * per_epoch for entry in epochs
    )
  skipped = sum(entry.get('skipped', 0) for entry in entries)
  if skipped:
    summary['skipped_steps'] = skipped
  for name, step in (('last', last), ('best', best)):
    entry, scores = by_step.get(step, {}), tested.get(step, {})
    found = entry | {f'test_{score}': scores[score] for score in scores}
    summary[name] = {'step': step, 'epoch': schedule.epoch_of(step)}
    if entry:
      summary[name]['weights'] = better(entry, 'val_')[1]
    figures = [figure for _, figure, _ in _rows()]
    summary[name] |= {
        figure: found[figure]
        for figure in (*figures, *_BY_CLASS)
        if figure in found
    }
  return summary


def load(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns the last summary; None if none was written.

  A damaged summary is an error: summarising the run again would read the test
  split a second time.

  Raises:
    UserError: If it is damaged.
  """
  path = folder / _FILE
  return files.read_json(path) if path.exists() else None


def is_tested(summary: Mapping[str, Any]) -> bool:
  """Returns whether it has scores on the test split."""
  return any(name.startswith('test_') for name in summary['last'])


def table(summary: Mapping[str, Any]) -> str:
  """Returns the summary as text, for the terminal."""
  last, best = summary['last'], summary['best']
  lines = [
      '',
      _line('', '', 'last', 'best'),
      _line('epoch', '', last['epoch'], best['epoch']),
  ]
  lines += [
      _line(label, form, last[name], best[name])
      for label, name, form in _rows()
      if name in last and name in best
  ]
  average = any(name.startswith(f'val_{raw_and_ema.PREFIX}') for name in last)
  if average and 'weights' in best:
    better = last['weights'], best['weights']
    lines.append(_line('better on validation data', '', *better))
  for label, name, form in (
      ('parameters', 'parameters', ','),
      ('seconds per epoch', 'seconds_per_epoch', '.1f'),
      ('steps skipped, not finite', 'skipped_steps', ','),
  ):
    if name in summary:
      lines.append(_line(label, form, summary[name]))
  if summary['steps'] < summary['total_steps']:
    lines.append(
        f'Stopped at step {summary["steps"]:,} of {summary["total_steps"]:,}: '
        'not tested yet.'
    )
  return '\n'.join(lines)


def _line(label, form, *values):
  return f'{label:<34}' + ''.join(f'{value:>10{form}}' for value in values)


def _rows():
  """Yields the rows of the table: each score, and below it that of the EMA."""
  for label, split, name, form in FIGURES:
    yield label, f'{split}_{name}', form
    yield '  EMA', f'{split}_{raw_and_ema.PREFIX}{name}', form
