"""Tests the closing summary and its table against values by hand."""

import json

import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.runs import scores
from gswinrmt_jax.runs import summary as closing
from gswinrmt_jax.train import schedule as plan_lib
from gswinrmt_jax.train import train_state as state_lib

FACTS = {'model': 'a', 'data': 'b', 'seed': 3, 'parameters': 1234}
PLAN = plan_lib.Schedule(
    num_examples=10,
    batch_size=4,
    num_epochs=6,
    stop_after_epochs=3,
    eval_every_epochs=1,
    log_every_steps=5,
)


def _epoch(step, epoch, accuracy, steps, seconds):
  return {
      'kind': 'epoch',
      'step': step,
      'epoch': epoch,
      'val_accuracy': accuracy,
      'steps': steps,
      'seconds': seconds,
  }


ENTRIES = [
    {'kind': 'train', 'step': 2},
    _epoch(2, 1, 0.25, 2, 20.0),
    _epoch(5, 2, 0.75, 3, 6.0),
    _epoch(7, 3, 0.50, 2, 3.0),
]


def _figures(accuracy):
  return {
      'accuracy': accuracy,
      'top5_accuracy': 0.875,
      'loss': 1.25,
      'smoothed_loss': 1.5,
  }


def _summary():
  tested = {7: _figures(0.5), 5: _figures(0.625)}
  return closing.summarize(FACTS, PLAN, ENTRIES, tested, last=7, best=5)


def test_last_and_best_are_told_apart():
  summary = _summary()
  assert summary['last']['epoch'] == 3 and summary['best']['epoch'] == 2
  assert summary['last']['val_accuracy'] == 0.5
  assert summary['best']['val_accuracy'] == 0.75
  assert summary['last']['test_accuracy'] == 0.5
  assert summary['best']['test_accuracy'] == 0.625
  assert summary['total_steps'] == 15 and summary['steps'] == 7
  # The median of 10, 2 and 1.5 s per step, times 10 / 4 steps per epoch.
  assert summary['seconds_per_epoch'] == 5.0
  assert json.loads(json.dumps(summary)) == summary


def test_scores_of_classes_are_kept_also_of_the_average():
  figures = {'class_iou': [0.5, None], 'ema_class_iou': [0.25, 1.0]}
  tested = {7: _figures(0.5) | figures, 5: _figures(0.625)}
  found = closing.summarize(FACTS, PLAN, ENTRIES, tested, last=7, best=5)
  for name, figure in figures.items():
    assert found['last'][f'test_{name}'] == figure


def test_skipped_steps_are_summed_up():
  entries = [{'kind': 'train', 'step': s, 'skipped': s} for s in (1, 2)]
  summary = closing.summarize(
      FACTS, PLAN, [*ENTRIES, *entries], {}, last=7, best=5
  )
  assert summary['skipped_steps'] == 3
  text = closing.table(summary)
  assert 'steps skipped, not finite                  3' in text
  assert 'skipped' not in closing.table(_summary())


def test_table_has_both_columns_and_says_that_it_stopped():
  text = closing.table(_summary())
  assert 'test accuracy                         50.00%    62.50%' in text
  assert 'test cross-entropy, smoothing 0.1     1.5000    1.5000' in text
  assert '1,234' in text and 'Stopped at step 7 of 15: not tested' in text
  complete = {**_summary(), 'steps': 15}
  assert 'Stopped' not in closing.table(complete)


def test_the_average_has_rows_of_its_own():
  entries = [
      {**entry, 'val_ema_accuracy': accuracy}
      for entry, accuracy in zip(ENTRIES[1:], (0.1, 0.8, 0.5), strict=True)
  ]
  averaged = {f'ema_{name}': of for name, of in _figures(0.375).items()}
  tested = {7: {**_figures(0.5), **averaged}}
  summary = closing.summarize(FACTS, PLAN, entries, tested, last=7, best=5)
  assert summary['best']['weights'] == 'ema'
  assert summary['last']['weights'] == 'raw'  # both reach 0.5
  assert summary['best']['val_ema_accuracy'] == 0.8
  assert summary['last']['test_ema_accuracy'] == 0.375
  tested[5] = tested[7]
  summary = closing.summarize(FACTS, PLAN, entries, tested, last=7, best=5)
  text = closing.table(summary)
  assert '  EMA                                 50.00%    80.00%' in text
  assert '  EMA                                 37.50%    37.50%' in text
  assert 'better on validation data                raw       ema' in text
  assert 'EMA' not in closing.table(_summary())


def test_a_summary_that_was_written_is_read(tmp_path):
  assert closing.load(tmp_path) is None
  (tmp_path / 'summary.json').write_text(json.dumps(_summary()))
  assert closing.load(tmp_path) == _summary()


def test_a_log_with_a_gap_leaves_figures_out():
  """The log may have been edited by hand; the checkpoints decide."""
  tested = {7: _figures(0.5), 5: _figures(0.625)}
  gap = [entry for entry in ENTRIES if entry['step'] != 5]
  summary = closing.summarize(FACTS, PLAN, gap, tested, last=7, best=5)
  assert summary['best']['epoch'] == 2
  assert summary['best']['test_accuracy'] == 0.625
  assert 'val_accuracy' not in summary['best']
  assert 'test accuracy' in closing.table(summary)
  summary = closing.summarize(FACTS, PLAN, [], tested, last=7, best=5)
  assert 'seconds per epoch' not in closing.table(summary)


def test_the_better_of_raw_and_average():
  assert scores.better({'accuracy': 0.5}) == (0.5, 'raw')
  pixels = {'val_pixel_accuracy': 0.9, 'val_ema_pixel_accuracy': 0.8}
  iou = {'val_mean_iou': 0.3, 'val_ema_mean_iou': 0.4}
  assert scores.better({**pixels, **iou}, 'val_') == (0.4, 'ema')
  for raw, ema, which in ((2, 3, 'ema'), (3, 2, 'raw'), (3, 3, 'raw')):
    figures = {'val_accuracy': raw, 'val_ema_accuracy': ema}
    assert scores.better(figures, 'val_') == (max(raw, ema), which)


def test_a_loss_that_is_not_finite_ranks_last():
  figures = {'accuracy': 0.9, 'loss': np.nan, 'ema_accuracy': 0.1}
  assert scores.better({**figures, 'ema_loss': 2.0}) == (0.1, 'ema')
  assert scores.better({**figures, 'ema_loss': np.inf}) == (-1, 'raw')


def test_parameter_count():
  state = state_lib.TrainState(
      step=0,
      params={'a': jnp.ones((2, 3)), 'b': jnp.ones(())},
      batch_stats={'c': jnp.ones(5)},
      opt_state=(),
  )
  assert closing.parameter_count(state) == 7
