"""Scores of segmentation, from one confusion matrix over all pixels.

As in mmsegmentation, they are computed over the whole data set at once and not
averaged over images.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gswinrmt_jax.data import pictures


def batch_sums(
    logits: jax.Array, labels: jax.Array, mask: jax.Array
) -> dict[str, jax.Array]:
  """Returns a batch's contribution to the sums over a data set.

  Args:
    logits: `[b, h, w, k]`; the largest is the prediction.
    labels: Integers `[b, h, w]` from 0 to k - 1, or `pictures.VOID`, which no
      sum includes. Any other makes the loss not a number.
    mask: `[b]`, 0 for padding rows, which no sum includes.

  Returns:
    `images`, the number of images; `loss`, the summed cross-entropy of labelled
    pixels; `confusion`, `[k, k]`, pixels by true class (row) and predicted
    class (column); and `not_finite`, `[k]`, pixels by true class whose logits
    are not all finite: wrong answers, without a predicted class. Counts are
    int32, since float32 counts only to 16.8 million.
  """
  num_classes = logits.shape[-1]
  real = mask > 0
  counted = (labels != pictures.VOID) & real[:, None, None]
  labels = jnp.where(counted, labels, 0).astype(jnp.int32)
  # Pixels that do not count get an index that `bincount` drops.
  known = counted & (0 <= labels) & (labels < num_classes)
  finite = jnp.isfinite(logits).all(-1)
  pair = labels * num_classes + logits.argmax(-1)
  pair = jnp.where(known & finite, pair, num_classes**2)
  missed = jnp.where(known & ~finite, labels, num_classes)
  confusion = jnp.bincount(pair.ravel(), length=num_classes**2)
  return {
      'images': real.sum(),
      'loss': jnp.where(counted, cross_entropy(logits, labels), 0.0).sum(),
      'confusion': confusion.reshape(num_classes, num_classes),
      'not_finite': jnp.bincount(missed.ravel(), length=num_classes),
  }


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the cross-entropy `[b, h, w]` of pixels; NaN for no such class."""
  # Of a negative label, Optax would return the loss of a class from the end.
  labels = jnp.where(labels < 0, logits.shape[-1], labels)
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def scores(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Returns the reported scores, as plain numbers and lists.

      IoU_k = C_kk / (sum_j C_kj + sum_i C_ik - C_kk)
      accuracy_k = C_kk / sum_j C_kj

  A class that occurs in no label and no prediction has the IoU None, and one
  that occurs in no label the accuracy None. `mean_iou` and `mean_accuracy`, the
  means over classes, leave them out.
  `not_finite` is there only if logits of some pixels are not finite; they count
  as labelled, and as no prediction.

  Args:
    sums: Sums of `batch_sums` over a whole data set in which a pixel has a
      class.
  """
  confusion = np.asarray(sums['confusion'], np.float64)
  right, labelled = np.diag(confusion), confusion.sum(1) + sums['not_finite']
  union = labelled + confusion.sum(0) - right
  # Where a class has no pixels, they are masked, and None as a list.
  iou, accuracy = np.ma.divide(right, union), np.ma.divide(right, labelled)
  not_finite = int(np.sum(sums['not_finite']))
  return {
      'images': int(sums['images']),
      **({'not_finite': not_finite} if not_finite else {}),
      'mean_iou': float(iou.mean()),
      'pixel_accuracy': float(right.sum() / labelled.sum()),
      'mean_accuracy': float(accuracy.mean()),
      'loss': float(sums['loss'] / labelled.sum()),
      'class_iou': iou.tolist(),
      'class_accuracy': accuracy.tolist(),
      'confusion': confusion.astype(int).tolist(),
  }


def table(report: Mapping[str, Any], class_names: Sequence[str]) -> str:
  """Returns the scores as text, for the terminal."""
  width = max(16, *map(len, class_names)) + 2

  def row(name, *shares):
    cells = ('-' if share is None else f'{share:.2%}' for share in shares)
    return f'{name:<{width}}' + ''.join(f'{cell:>10}' for cell in cells)

  lines = [
      f'{"images":<{width}}{report["images"]:>10}',
      row('mean IoU', report['mean_iou']),
      row('pixel accuracy', report['pixel_accuracy']),
      row('mean accuracy', report['mean_accuracy']),
      f'{"cross-entropy":<{width}}{report["loss"]:>10.4f}',
      '',
      f'{"class":<{width}}{"IoU":>10}{"accuracy":>10}',
  ]
  for cells in zip(
      class_names, report['class_iou'], report['class_accuracy'], strict=True
  ):
    lines.append(row(*cells))
  scored = sum(share is not None for share in report['class_iou'])
  if scored < len(class_names):
    lines.append(
        f'The mean IoU is over {scored} of {len(class_names)} classes: the '
        'others have no pixels.'
    )
  return '\n'.join(lines)
