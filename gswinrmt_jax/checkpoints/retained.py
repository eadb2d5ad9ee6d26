"""Which checkpoints are kept."""

from collections.abc import Mapping

_LATEST = 2  # of each kind: the newest could turn out to be damaged


def superseded(accuracies: Mapping[int, float | None]) -> list[int]:
  """Returns the steps that are needed no longer.

  Kept are the best and the two latest of those that were validated and, of
  those from amid an epoch, the two latest that are newer.

  Args:
    accuracies: On validation data, by step; None for a checkpoint from amid an
      epoch. Of several with the highest the latest is the best.
  """
  validated = sorted(s for s, of in accuracies.items() if of is not None)
  amid = sorted(accuracies.keys() - set(validated))
  newest = validated[-1] if validated else 0
  kept = {*validated[-_LATEST:], *(s for s in amid[-_LATEST:] if s > newest)}
  if validated:
    kept.add(max(validated, key=lambda step: (accuracies[step], step)))
  return sorted(accuracies.keys() - kept)
