"""Every reported figure against one worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.evals import metrics

# Three classes; probabilities chosen, logits are their logarithms.
PROBABILITIES = np.array(
    [
        [0.50, 0.30, 0.20],  # true 0: right, confidence 0.50
        [0.10, 0.72, 0.18],  # true 1: right, confidence 0.72
        [0.25, 0.05, 0.70],  # true 0: wrong, confidence 0.70
        [0.90, 0.06, 0.04],  # padding
    ]
)
LABEL = np.array([0, 1, 0, 2], np.int32)
MASK = np.array([1, 1, 1, 0], np.float32)


_batch_sums = jax.jit(metrics.batch_sums)


def _report(logits, label, mask):
  sums = _batch_sums(
      jnp.asarray(logits, jnp.float32), jnp.asarray(label), jnp.asarray(mask)
  )
  return metrics.figures(
      jax.tree.map(lambda leaf: np.asarray(leaf, float), sums)
  )


def test_figures_by_hand():
  report = _report(np.log(PROBABILITIES), LABEL, MASK)
  logs = np.log(PROBABILITIES[:3])
  true = np.array([logs[0, 0], logs[1, 1], logs[2, 0]])
  assert report['count'] == 3
  assert report['accuracy'] == pytest.approx(2 / 3)
  assert report['top5_accuracy'] == 1.0  # of three classes, all are among five
  assert report['loss'] == pytest.approx(-true.mean(), rel=1e-6)
  smoothed = -(0.9 * true + 0.1 * logs.mean(1)).mean()
  assert report['smoothed_loss'] == pytest.approx(smoothed, rel=1e-6)
  assert report['class_accuracy'] == [0.5, 1.0, 0.0]
  assert report['confusion'] == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
  # Bins of 1/15: 0.50 lies in (7/15, 8/15]; 0.70 and 0.72 in (10/15, 11/15].
  expected = (abs(1 - 0.50) + abs((1 + 0) - (0.72 + 0.70))) / 3
  assert report['calibration_error'] == pytest.approx(expected, rel=1e-5)


def test_bins_are_closed_above_and_fifteen():
  """Confidences 3/15 and just above it are in different bins."""
  logits = np.log(
      [
          [3 / 15 - 1e-4] + [(12 / 15 + 1e-4) / 6] * 6,
          [3 / 15 + 1e-4] + [(12 / 15 - 1e-4) / 6] * 6,
      ]
  )
  sums = _batch_sums(
      jnp.asarray(logits, jnp.float32), jnp.array([0, 0]), jnp.ones(2)
  )
  filled = [value > 0 for value in sums['bin_confidence'].tolist()]
  assert filled == [False, False, True, True] + [False] * 11


def test_top5_of_seven_classes():
  logits = np.tile(np.arange(7.0), (7, 1))  # class 6 first, class 0 last
  report = _report(logits, np.arange(7), np.ones(7, np.float32))
  assert report['accuracy'] == pytest.approx(1 / 7)
  assert report['top5_accuracy'] == pytest.approx(5 / 7)


def test_padding_may_hold_anything():
  logits = np.log(PROBABILITIES)
  logits[3] = np.nan
  report = _report(logits, LABEL, MASK)
  assert report == _report(np.log(PROBABILITIES), LABEL, MASK)


def test_a_split_that_is_parted_gives_the_same_figures():
  rng = np.random.default_rng(0)
  logits, label = rng.normal(size=(11, 7)), rng.integers(7, size=11)
  whole = _report(logits, label, np.ones(11, np.float32))
  parts = [
      _batch_sums(
          jnp.asarray(logits[rows], jnp.float32),
          jnp.asarray(label[rows]),
          jnp.ones(len(label[rows])),
      )
      for rows in (slice(0, 4), slice(4, 11))
  ]
  sums = jax.tree.map(lambda a, b: np.asarray(a, float) + b, *parts)
  for name, value in metrics.figures(sums).items():
    np.testing.assert_allclose(value, whole[name], rtol=1e-5, err_msg=name)


def test_table_names_every_figure_and_class():
  report = _report(np.log(PROBABILITIES), LABEL, MASK)
  text = metrics.table(report, ('cat', 'dog', 'aeroplane'))
  assert 'top-1 accuracy                  66.67%' in text
  for word in ('top-5', 'smoothing 0.1', 'calibration', 'cat', 'aeroplane'):
    assert word in text
  wide = metrics.table(report, [f'class{i}' for i in range(100)])
  assert 'class0' not in wide
