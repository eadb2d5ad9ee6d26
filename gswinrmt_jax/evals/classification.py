"""Scores of classification, computed from sums over a data set."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

SMOOTHING = 0.1
NUM_BINS = 15


def batch_sums(
    logits: jax.Array, label: jax.Array, mask: jax.Array
) -> dict[str, jax.Array]:
  """Returns a batch's contribution to the sums over a data set.

  Args:
    logits: float32 `[b, k]`.
    label: int `[b]`.
    mask: float32 `[b]`, 0 for padding.

  Returns:
    Sums over the real rows. Scalars: `count`, `loss` (cross-entropy),
    `smoothed_loss` (with smoothing 0.1), `top1`, `top5`. Per confidence bin:
    `bin_confidence`, `bin_correct`, `[15]`. `confusion`: `[k, k]`, counts by
    true class (row) and predicted class (column). `not_finite`: `[k]`, images
    by true class whose logits are not all finite: wrong answers, without a
    predicted class. A label that is no class makes both losses NaN.
  """
  num_classes = logits.shape[-1]
  one_hot = jax.nn.one_hot(label, num_classes)
  smoothed = optax.smooth_labels(one_hot, SMOOTHING)
  _, best = jax.lax.top_k(logits, min(5, num_classes))  # b 5
  finite = jnp.isfinite(logits).all(-1)
  hit = (best == label[:, None]) & finite[:, None]
  confidence = jnp.where(finite, jax.nn.softmax(logits).max(-1), 0.0)
  # Bin m holds the confidences in (m / 15, (m + 1) / 15].
  bins = jnp.clip(jnp.ceil(confidence * NUM_BINS) - 1, 0, NUM_BINS - 1)
  in_bin = mask[:, None] * jax.nn.one_hot(bins.astype(int), NUM_BINS)  # b 15

  known = (0 <= label) & (label < num_classes)

  def total(values):
    # Padding may hold non-finite values, which multiplying by 0 would keep.
    return jnp.sum(jnp.where(mask > 0, values, 0.0))

  def total_loss(targets):
    losses = optax.softmax_cross_entropy(logits, targets)
    return total(jnp.where(known, losses, jnp.nan))

  return {
      'count': mask.sum(),
      'loss': total_loss(one_hot),
      'smoothed_loss': total_loss(smoothed),
      'top1': total(hit[:, 0]),
      'top5': total(hit.any(-1)),
      'bin_confidence': jnp.where(in_bin > 0, confidence[:, None], 0.0).sum(0),
      'bin_correct': (in_bin * hit[:, :1]).sum(0),
      'confusion': jnp.einsum(
          'bk,bK->kK',
          one_hot * (mask * finite)[:, None],
          jax.nn.one_hot(best[:, 0], num_classes),
          precision='highest',
      ),
      'not_finite': (one_hot * (mask * ~finite)[:, None]).sum(0),
  }


def scores(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Returns the reported scores, as plain numbers and lists.

  Of up to five classes, there is no top-5 accuracy: it would always be 1.
  `not_finite` is there only if logits of some images are not finite. A class
  without images has the accuracy None.

  The expected calibration error uses 15 bins of equal width for the confidence,
  the largest probability. With `n_m` of `n` images in bin m,

      ECE = sum_m (n_m / n) |accuracy_m - confidence_m|

  Args:
    sums: Sums of `batch_sums` over a whole data set, in float64.
  """
  count = sums['count']
  confusion = sums['confusion']
  labelled = confusion.sum(1) + sums['not_finite']
  # Masked, and None as a list, where a class has no images.
  per_class = np.ma.divide(np.diag(confusion), labelled).tolist()
  gaps = np.abs(sums['bin_correct'] - sums['bin_confidence'])
  top5 = {'top5_accuracy': float(sums['top5'] / count)}
  not_finite = int(sums['not_finite'].sum())
  return {
      'count': int(count),
      **({'not_finite': not_finite} if not_finite else {}),
      'accuracy': float(sums['top1'] / count),
      **(top5 if len(confusion) > 5 else {}),
      'loss': float(sums['loss'] / count),
      'smoothed_loss': float(sums['smoothed_loss'] / count),
      'calibration_error': float(gaps.sum() / count),
      'class_accuracy': per_class,
      'confusion': confusion.astype(int).tolist(),
  }


def table(report: Mapping[str, Any], class_names: Sequence[str]) -> str:
  """Returns the scores as text, for the terminal."""
  rows = [
      ('images', 'count', 'd'),
      ('top-1 accuracy', 'accuracy', '.2%'),
      ('top-5 accuracy', 'top5_accuracy', '.2%'),
      ('cross-entropy', 'loss', '.4f'),
      (f'cross-entropy, smoothing {SMOOTHING}', 'smoothed_loss', '.4f'),
      (f'calibration error ({NUM_BINS} bins)', 'calibration_error', '.2%'),
  ]
  lines = [
      f'{label:<28}{report[name]:>10{form}}'
      for label, name, form in rows
      if name in report
  ]
  if len(class_names) <= 20:
    lines += ['', *_confusion_lines(report, class_names)]
  return '\n'.join(lines)


def _confusion_lines(report, class_names):
  """Yields a header and, for each class, its accuracy and predictions."""
  heads = [name[:6] for name in class_names]
  if len(set(heads)) < len(heads):
    heads = [str(label) for label in range(len(heads))]
    class_names = [f'{label} {name}' for label, name in enumerate(class_names)]
  width = max(10, *map(len, class_names)) + 2
  yield f'{"true class":<{width}}{"accuracy":>9}   predicted as'
  header = ''.join(f'{head:>7}' for head in heads)
  yield ' ' * (width + 9) + header
  for name, accuracy, counts in zip(
      class_names, report['class_accuracy'], report['confusion'], strict=True
  ):
    cells = ''.join(f'{count:>7}' for count in counts)
    share = '-' if accuracy is None else f'{accuracy:.2%}'
    yield f'{name:<{width}}{share:>9}{cells}'
