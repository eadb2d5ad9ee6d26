"""The scores that a run logs, shows and sums up, and which of them is best."""

from collections.abc import Iterable, Mapping
import math
from typing import Any, NamedTuple

from gswinrmt_jax.checkpoints.raw_and_ema import EMA, PREFIX, RAW


class Score(NamedTuple):
  """How a score is shown.

  Attributes:
    label: Its name in tables.
    form: Format of its value.
    shown: Whether it is shown for validation data, too, and drawn if its form
      is a percentage. The others are shown for test data only.
    decides: Whether its validation value, of which larger is better, decides
      which epoch is the best, if it is the first such score that a run has.
    metric: Its name on model hubs; '' for the name that it has here.
  """

  label: str
  form: str
  shown: bool = False
  decides: bool = False
  metric: str = ''


_AP = 'mean_average_precision'

# By its name in reports and logs; a run has those of its task.
SCORES = {
    'mask_ap': Score('mask AP', '.2%', shown=True, decides=True, metric=_AP),
    'mask_ap50': Score('mask AP50', '.2%', metric=_AP),
    'mask_ap75': Score('mask AP75', '.2%', metric=_AP),
    'mask_ar': Score('mask AR', '.2%'),
    'ap': Score('box AP', '.2%', shown=True, decides=True, metric=_AP),
    'ap50': Score('box AP50', '.2%', shown=True, metric=_AP),
    'ap75': Score('box AP75', '.2%', metric=_AP),
    'ap_small': Score('box AP, small objects', '.2%', metric=_AP),
    'ap_medium': Score('box AP, medium objects', '.2%', metric=_AP),
    'ap_large': Score('box AP, large objects', '.2%', metric=_AP),
    'ar': Score('box AR', '.2%'),
    'mean_iou': Score('mean IoU', '.2%', shown=True, decides=True),
    'pixel_accuracy': Score(
        'pixel accuracy', '.2%', shown=True, metric='accuracy'
    ),
    'mean_accuracy': Score('mean accuracy', '.2%'),
    'accuracy': Score('accuracy', '.2%', shown=True, decides=True),
    'top5_accuracy': Score('top-5 accuracy', '.2%', metric='accuracy'),
    'loss': Score('cross-entropy', '.4f'),
    'smoothed_loss': Score(
        'cross-entropy, smoothing 0.1', '.4f', metric='loss'
    ),
}


def deciding(scores: Mapping[str, Any], split: str = '') -> str:
  """Returns the first score that decides, such as a classifier's accuracy.

  Args:
    scores: As `raw_and_ema.merged` returns them.
    split: Prefix of their names, such as `'val_'`.
  """
  return next(
      name
      for name, score in SCORES.items()
      if score.decides and f'{split}{name}' in scores
  )


def better(scores: Mapping[str, Any], split: str = '') -> tuple[float, str]:
  """Returns the higher score in merged scores, and whether 'raw' or 'ema'.

  If the loss is not finite, it is -1, which is below every other. A tie counts
  as 'raw'. For the arguments, see `deciding`.
  """
  name = deciding(scores, split)

  def value(prefix):
    finite = math.isfinite(scores.get(f'{prefix}loss', 0.0))
    return scores.get(f'{prefix}{name}', -1.0) if finite else -1.0

  raw, ema = value(split), value(split + PREFIX)
  return (ema, EMA) if ema > raw else (raw, RAW)


def best_epoch(epochs: Iterable[Mapping[str, Any]]) -> tuple[float, int, str]:
  """Returns the best score of a log's epochs, its epoch, and 'raw' or 'ema'.

  A tie goes to the later epoch.
  """
  scores = [(better(entry, 'val_'), entry['epoch']) for entry in epochs]
  return max((score, epoch, whose) for (score, whose), epoch in scores)
