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
    'mean_iou': Score('mean IoU', '.2%', decides=True),
    'pixel_accuracy': Score('pixel accuracy', '.2%', decides=True),
    'accuracy': Score('accuracy', '.2%', decides=True),
    'top5_accuracy': Score('top-5 accuracy', '.2%'),
    'loss': Score('cross-entropy', '.4f'),
    'smoothed_loss': Score('cross-entropy, smoothing 0.1', '.4f'),
}
