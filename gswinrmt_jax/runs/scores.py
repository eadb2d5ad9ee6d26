"""The scores that a run logs, shows and sums up."""

from typing import NamedTuple


class Score(NamedTuple):
  """How a score is shown.

  Attributes:
    label: Its name in tables.
    form: Format of its value.
    decides: Whether it is shown for validation data, where the first one that a
      run has decides which epoch is the best. The others are shown for test
      data only.
  """

  label: str
  form: str
  decides: bool = False


# By its name in reports and logs; a run has those of its task.
SCORES = {
    'mask_ap': Score('mask AP', '.2%', decides=True),
    'ap': Score('box AP', '.2%', decides=True),
    'ap50': Score('box AP50', '.2%', decides=True),
    'ap75': Score('box AP75', '.2%'),
    'ap_small': Score('box AP, small objects', '.2%'),
    'ap_medium': Score('box AP, medium objects', '.2%'),
    'ap_large': Score('box AP, large objects', '.2%'),
    'mask_ap50': Score('mask AP50', '.2%'),
    'mask_ap75': Score('mask AP75', '.2%'),
    'mean_iou': Score('mean IoU', '.2%', decides=True),
    'pixel_accuracy': Score('pixel accuracy', '.2%', decides=True),
    'accuracy': Score('accuracy', '.2%', decides=True),
    'top5_accuracy': Score('top-5 accuracy', '.2%'),
    'loss': Score('cross-entropy', '.4f'),
    'smoothed_loss': Score('cross-entropy, smoothing 0.1', '.4f'),
}
