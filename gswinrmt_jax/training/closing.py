"""The closing summary of a run: the last and the best checkpoint."""

from collections.abc import Mapping
import json
import pathlib
import statistics
from typing import Any

import jax

from gswinrmt_jax.training import run_folder
from gswinrmt_jax.training.state import TrainState

_FIGURES = (
    ('validation accuracy', 'val_accuracy', '.2%'),
    ('test accuracy', 'test_accuracy', '.2%'),
    ('test top-5 accuracy', 'test_top5_accuracy', '.2%'),
    ('test cross-entropy', 'test_loss', '.4f'),
    ('test cross-entropy, smoothing 0.1', 'test_smoothed_loss', '.4f'),
)


def parameter_count(state: TrainState) -> int:
  """Returns the number of parameters."""
  return sum(leaf.size for leaf in jax.tree.leaves(state.params))


def summarize(run: Any, state: TrainState) -> dict[str, Any]:
  """Tests the last and the best checkpoint and writes `summary.json`.

  The test split is read here and nowhere else in a run.

  Args:
    run: The run, with its checkpoints written.
    state: The last state.

  Returns:
    What was written.
  """
  data = run.test_data()
  last, best = int(state.step), run.checkpoints.best_step()
  tested = {last: run.evaluate(state.variables, data)}
  if best != last:
    restored = run.checkpoints.restore(best, run.target.variables)
    tested[best] = run.evaluate(restored.tree, data)
  epochs = [entry for entry in run.log.entries if entry['kind'] == 'epoch']
  by_step = {entry['step']: entry for entry in epochs}
  per_epoch = run.plan.num_examples / run.plan.batch_size
  summary = {
      'model': run.config.model.name,
      'data': run.config.data.name,
      'seed': run.config.seed,
      'parameters': parameter_count(state),
      'steps': last,
      'total_steps': run.plan.total_steps,
      # The median leaves out the compilation in the first epoch.
      'seconds_per_epoch': statistics.median(
          entry['seconds'] / entry['steps'] * per_epoch for entry in epochs
      ),
  }
  for name, step in (('last', last), ('best', best)):
    summary[name] = {
        'step': step,
        'epoch': by_step[step]['epoch'],
        'val_accuracy': by_step[step]['val_accuracy'],
        'test_accuracy': tested[step]['accuracy'],
        'test_top5_accuracy': tested[step]['top5_accuracy'],
        'test_loss': tested[step]['loss'],
        'test_smoothed_loss': tested[step]['smoothed_loss'],
    }
  run_folder.write_json(run.folder / 'summary.json', summary)
  return summary


def read(folder: pathlib.Path, step: int) -> dict[str, Any] | None:
  """Returns the summary of a run that ended at `step`, if it was written."""
  path = folder / 'summary.json'
  if not path.exists():
    return None
  summary = json.loads(path.read_text())
  return summary if summary['steps'] == step else None


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
      for label, name, form in _FIGURES
  ]
  lines += [
      f'{"parameters":<34}{summary["parameters"]:>10,}',
      f'{"seconds per epoch":<34}{summary["seconds_per_epoch"]:>10.1f}',
  ]
  if summary['steps'] < summary['total_steps']:
    lines.append(
        f'Stopped at step {summary["steps"]:,} of {summary["total_steps"]:,}.'
    )
  return '\n'.join(lines)
