"""Which checkpoints of a run are kept, and which is the best."""

from collections.abc import Mapping

_LATEST = 2  # kept of each kind, in case the newest is damaged


def superseded(accuracies: Mapping[int, float | None]) -> list[int]:
  """Returns the steps whose checkpoints are no longer needed.

  The best and the two latest validated checkpoints are kept. Of the two latest
  mid-epoch checkpoints, those newer than every validated one are kept.

  Args:
    accuracies: Validation accuracy by step; None for a mid-epoch checkpoint.
  """
  validated = sorted(s for s, value in accuracies.items() if value is not None)
  mid_epoch = sorted(accuracies.keys() - set(validated))
  newest = validated[-1] if validated else 0
  kept = {*validated[-_LATEST:]}
  kept |= {step for step in mid_epoch[-_LATEST:] if step > newest}
  if validated:
    kept.add(best_first(accuracies)[0])
  return sorted(accuracies.keys() - kept)


def best_first(accuracies: Mapping[int, float | None]) -> list[int]:
  """Returns the steps by falling accuracy, and of equal ones the latest first.

  Mid-epoch checkpoints, which have no accuracy, come last.
  """

  def rank(step):
    accuracy = accuracies[step]
    return accuracy is not None, accuracy or 0.0, step

  return sorted(accuracies, key=rank, reverse=True)
