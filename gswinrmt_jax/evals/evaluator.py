"""Evaluation in one pass over a data set."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import functools
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.evals import classification, detection, segmentation


class Sums:
  """A collector for scores that follow from sums over the batches."""

  def __init__(self, scores: Callable[[Any], dict[str, Any]]):
    """Takes the function from the sums to the scores."""
    self._scores, self._total = scores, None

  def add(self, outputs: Mapping[str, np.ndarray]) -> None:
    """Adds the sums over a batch, in float64."""
    sums = jax.tree.map(np.float64, outputs)
    if self._total is not None:
      sums = jax.tree.map(np.add, self._total, sums)
    self._total = sums

  def scores(self) -> dict[str, Any]:
    """Returns the scores of all batches."""
    return self._scores(self._total)


def _sums_of_logits(task, apply, image, batch):
  """Returns the sums of a module over a batch."""
  padding = {'extents': batch['extents']} if 'extents' in batch else {}
  logits = apply(image, **padding)
  if 'label_extents' in batch:  # Labels keep their stored size.
    logits = ops.resize_bilinear(
        logits,
        batch['extents'],
        batch['label_extents'],
        size=batch['label'].shape[1:3],
    )
  return task.batch_sums(logits, batch['label'], batch['mask'])


def _mirrored(apply):
  """Returns the mean of what `apply` returns for images and mirror images."""
  return lambda image: (apply(image) + apply(image[:, :, ::-1])) / 2


class Task(NamedTuple):
  """How models of a task are evaluated.

  Attributes:
    outputs: `(apply, image, batch) -> outputs`, on the devices; `apply` is the
      model's, bound to everything but the image.
    collector: `(records, number of classes) -> collector`, which has `add` and
      `scores` like `Sums`.
    table: `(report, class names) -> text`.
    broken: What `not_finite` counts, for messages.
  """

  outputs: Callable[..., dict[str, jax.Array]]
  collector: Callable[[Any, int], Sums | detection.Collector]
  table: Callable[[Mapping[str, Any], Sequence[str]], str]
  broken: str


def _with_sums(module, broken):
  return Task(
      functools.partial(_sums_of_logits, module),
      lambda records, num_classes: Sums(module.scores),
      module.table,
      broken,
  )


TASKS = {
    'classification': _with_sums(classification, 'the logits of {:,} images'),
    'segmentation': _with_sums(segmentation, 'the logits of {:,} pixels'),
    'detection': Task(
        detection.batch_outputs,
        detection.Collector,
        detection.table,
        'boxes, scores or masks of {:,} images',
    ),
}
EvalStep = Callable[
    [Mapping[str, Any], Mapping[str, jax.Array]], dict[str, jax.Array]
]
_AHEAD = 8  # batches by which the host may be ahead of the device


def make_eval_step(
    model: nn.Module,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    task: str = 'classification',
    *,
    mirror: bool = False,
) -> EvalStep:
  """Returns `(variables, batch) -> outputs`; the caller jits it.

  Args:
    model: Called as `model(image, train=False)`, and with `extents=` if batches
      have them; returns float32 logits or, for detection, `nms.Detections`.
    mean: Mean of each channel, as in `datasets.Info`.
    std: Standard deviation of each channel.
    task: A name in `TASKS`.
    mirror: Whether a classifier's logits are the mean over each image and its
      mirror image, left to right.
  """

  def eval_step(variables, batch):
    image = augment_lib.normalize(batch['image'], mean=mean, std=std)
    apply = functools.partial(model.apply, variables, train=False)
    if mirror:
      return TASKS[task].outputs(_mirrored(apply), image, batch)
    return TASKS[task].outputs(apply, image, batch)

  return eval_step


def evaluate(
    eval_step: EvalStep,
    weights: Mapping[str, Mapping[str, Any]],
    batches: Iterable[Mapping[str, Any]],
    task: str = 'classification',
    *,
    records: Any = None,
    num_classes: int = 0,
) -> dict[str, dict[str, Any]]:
  """Returns the scores of several sets of weights of one model, by name.

  The data is loaded once, since loading may take longer than the model does.

  Args:
    eval_step: The jitted result of `make_eval_step`.
    weights: The model's variables by the name of the set.
    batches: Batches with each record once; padding has mask 0.
    task: As for `make_eval_step`.
    records: The records of the batches; only detection needs them, which
      compares detections with the objects as they are stored.
    num_classes: Number of classes; likewise.
  """
  results = (
      {name: eval_step(variables, batch) for name, variables in weights.items()}
      for batch in batches
  )
  collectors = {
      name: TASKS[task].collector(records, num_classes) for name in weights
  }
  for outputs in fetched(results):
    for name, collector in collectors.items():
      collector.add(outputs[name])
  return {name: collector.scores() for name, collector in collectors.items()}


def not_finite(scores: Mapping[str, Any], task: str) -> str:
  """Returns what is wrong if what a model returned is not finite, or ''."""
  count = scores.get('not_finite')
  return f'{TASKS[task].broken.format(count)} are not finite' if count else ''


def fetched(results: Iterable[Any]) -> Iterator[Any]:
  """Yields results on the host, in order, while the device computes the next.

  Only a few are computed ahead, since they may be large: a confusion matrix of
  many classes, or the maps of a batch.
  """
  under_way = collections.deque()
  for result in results:
    under_way.append(result)
    if len(under_way) > _AHEAD:
      yield jax.device_get(under_way.popleft())
  yield from map(jax.device_get, under_way)
