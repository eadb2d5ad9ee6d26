"""Evaluation in one pass over a data set."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flax import linen as nn
import jax
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.evals import classification, segmentation

# Modules that compute the sums and scores of each task.
TASKS = {'classification': classification, 'segmentation': segmentation}
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
  """Returns `(variables, batch) -> sums over the batch`; the caller jits it.

  Args:
    model: Called as `model(image, train=False)`, and with `extents=` if batches
      have them; returns float32 logits.
    mean: Mean of each channel, as in `datasets.Info`.
    std: Standard deviation of each channel.
    task: A name in `TASKS`.
    mirror: Whether a classifier's logits are the mean over each image and its
      mirror image, left to right.
  """

  def eval_step(variables, batch):
    image = augment_lib.normalize(batch['image'], mean=mean, std=std)
    padding = {'extents': batch['extents']} if 'extents' in batch else {}
    logits = model.apply(variables, image, train=False, **padding)
    if mirror:
      mirrored = model.apply(variables, image[:, :, ::-1], train=False)
      logits = (logits + mirrored) / 2
    if 'label_extents' in batch:  # Labels keep their stored size.
      logits = ops.resize_bilinear(
          logits,
          batch['extents'],
          batch['label_extents'],
          size=batch['label'].shape[1:3],
      )
    return TASKS[task].batch_sums(logits, batch['label'], batch['mask'])

  return eval_step


def evaluate(
    eval_step: EvalStep,
    weights: Mapping[str, Mapping[str, Any]],
    batches: Iterable[Mapping[str, Any]],
    task: str = 'classification',
) -> dict[str, dict[str, Any]]:
  """Returns the scores of several sets of weights of one model, by name.

  The data is loaded once, since loading may take longer than the model does.

  Args:
    eval_step: The jitted result of `make_eval_step`.
    weights: The model's variables by the name of the set.
    batches: Batches with each record once; padding has mask 0.
    task: As for `make_eval_step`.
  """
  results = (
      {name: eval_step(variables, batch) for name, variables in weights.items()}
      for batch in batches
  )
  total = None
  for sums in fetched(results):
    sums = jax.tree.map(np.float64, sums)
    total = sums if total is None else jax.tree.map(np.add, total, sums)
  return {name: TASKS[task].scores(sums) for name, sums in total.items()}


def not_finite(scores: Mapping[str, Any]) -> str:
  """Returns what is wrong if logits are not finite, or ''."""
  count = scores.get('not_finite', 0)
  what = 'images' if 'count' in scores else 'pixels'
  return f'the logits of {count:,} {what} are not finite' if count else ''


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
