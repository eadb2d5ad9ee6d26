"""The summary of a run, `summary.json`: its last and its best checkpoint."""

from collections.abc import Mapping, Sequence
import pathlib
import statistics
from typing import Any

import jax
import ml_collections

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.errors import UserError

# Label, name, format. Rows appear only if the run has them: a segmenter has the
# first four and the cross-entropy.
_FIGURES = (
    ('validation mean IoU', 'val_mean_iou', '.2%'),
    ('validation pixel accuracy', 'val_pixel_accuracy', '.2%'),
    ('test mean IoU', 'test_mean_iou', '.2%'),
    ('test pixel accuracy', 'test_pixel_accuracy', '.2%'),
    ('validation accuracy', 'val_accuracy', '.2%'),
    ('test accuracy', 'test_accuracy', '.2%'),
    ('test top-5 accuracy', 'test_top5_accuracy', '.2%'),
    ('test cross-entropy', 'test_loss', '.4f'),
    ('test cross-entropy, smoothing 0.1', 'test_smoothed_loss', '.4f'),
)
_FILE = 'summary.json'
# Parts that every summary has.
_PARTS = {'steps': int, 'total_steps': int, 'last': dict, 'best': dict}


def parameter_count(state: Any) -> int:
  """Returns the number of parameters of a train state."""
  return sum(leaf.size for leaf in jax.tree.leaves(state.params))


def summarize(
    config: ml_collections.ConfigDict,
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
    config: The resolved config.
    schedule: The run's `train.schedule.Schedule`.
    entries: The entries of `metrics.jsonl`.
    tested: Scores on the test split by step; empty if the schedule was not
      finished. Those of the EMA are called `ema_NAME`.
    last: The last step.
    best: The step with the best validation accuracy or mean IoU, of the raw
      weights or of their EMA.
  """
  epochs = [entry for entry in entries if entry['kind'] == 'epoch']
  # If somebody truncated the log, a checkpoint may have no entry.
  by_step = {entry['step']: entry for entry in epochs}
  per_epoch = schedule.num_examples / schedule.batch_size
  summary = {
      'model': config.model.name,
      'data': config.data.name,
      'seed': config.seed,
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
    entry = by_step.get(step, {})
    figures = tested.get(step, {})
    found = entry | {f'test_{name}': figures[name] for name in figures}
    summary[name] = {'step': step, 'epoch': schedule.epoch_of(step)}
    if entry:
      summary[name]['weights'] = raw_and_ema.better(entry, 'val_')[1]
    summary[name] |= {
        figure: found[figure] for _, figure, _ in _rows() if figure in found
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
  try:
    return check(files.read_json(path), str(path))
  except FileNotFoundError:
    return None
  except UserError as error:
    raise UserError(
        f'{error}; restore it from a copy, or remove it: the next start then '
        'writes a new one, which reads the test split a second time'
    ) from error


def check(summary: Any, where: str) -> dict[str, Any]:
  """Returns a summary read from a file after checking its parts.

  Args:
    summary: The value in the file.
    where: The file's name, for the message.

  Raises:
    UserError: If it lacks a part that every summary has.
  """
  for name, kind in _PARTS.items():
    found = summary.get(name) if isinstance(summary, dict) else None
    if not isinstance(found, kind):
      raise UserError(
          f"{where} is not a complete summary: '{name}' is not in it"
      )
  return summary


def table(summary: Mapping[str, Any]) -> str:
  """Returns the summary as text, for the terminal."""
  last, best = summary['last'], summary['best']
  lines = [
      '',
      f'{"":<34}{"last":>10}{"best":>10}',
      f'{"epoch":<34}{last["epoch"]:>10}{best["epoch"]:>10}',
  ]
  lines += [
      f'{label:<34}{last[name]:>10{form}}{best[name]:>10{form}}'
      for label, name, form in _rows()
      if name in last and name in best
  ]
  if {'val_ema_accuracy', 'val_ema_mean_iou'} & {*last} and 'weights' in best:
    label = 'better on validation data'
    lines.append(f'{label:<34}{last["weights"]:>10}{best["weights"]:>10}')
  lines.append(f'{"parameters":<34}{summary["parameters"]:>10,}')
  if 'seconds_per_epoch' in summary:
    seconds = summary['seconds_per_epoch']
    lines.append(f'{"seconds per epoch":<34}{seconds:>10.1f}')
  if 'skipped_steps' in summary:
    label = 'steps skipped, not finite'
    lines.append(f'{label:<34}{summary["skipped_steps"]:>10,}')
  if summary['steps'] < summary['total_steps']:
    lines.append(
        f'Stopped at step {summary["steps"]:,} of {summary["total_steps"]:,}: '
        'not tested yet.'
    )
  return '\n'.join(lines)


def _rows():
  """Yields the rows of the table: each score, and below it that of the EMA."""
  for label, name, form in _FIGURES:
    yield label, name, form
    split, _, figure = name.partition('_')
    yield '  EMA', f'{split}_{raw_and_ema.PREFIX}{figure}', form
