"""Any model: a classifier, or a backbone with the head of a dense task."""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense import detector, segmenter

TITLES = segmenter.TITLES | detector.TITLES


def task(dense: Mapping[str, Any] | None) -> str:
  """Returns 'classification', 'segmentation' or 'detection'.

  Args:
    dense: As in `create`.
  """
  if dense is None:
    return 'classification'
  return 'detection' if dense['head'] in detector.HEADS else 'segmentation'


def create(
    name: str, dense: Mapping[str, Any] | None, /, **how: Any
) -> nn.Module:
  """Returns a classifier, segmenter or detector.

  Args:
    name: A name in `named.MODELS`.
    dense: Arguments of `create_segmenter` or `create_detector` that define the
      head; None for a classifier.
    **how: Their other arguments, or those of `create_model`. A `head` in it is
      that of a classifier, which dense models do not have.

  Raises:
    ValueError: If a name or field does not exist, or a value is invalid.
  """
  if dense is None:
    return factory.create_model(name, **how)
  how.pop('head', None)
  if task(dense) == 'detection':
    return detector.create_detector(name, **how, **dense)
  return segmenter.create_segmenter(name, **how, **dense)
