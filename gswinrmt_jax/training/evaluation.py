"""A pass over a data set: every image once."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flax import linen as nn
import jax
import numpy as np

from gswinrmt_jax.training import metrics

EvalStep = Callable[
    [Mapping[str, Any], Mapping[str, jax.Array]], dict[str, jax.Array]
]
_AHEAD = 8  # batches under way on the device while the host goes on


def make_eval_step(
    model: nn.Module,
    normalize: Callable[[jax.Array], jax.Array],
) -> EvalStep:
  """Returns `(variables, batch) -> sums over the batch`; the caller jits it.

  Args:
    model: Called as `model(image, train=False)`; returns float32 logits.
    normalize: Turns uint8 images into the model's input.
  """

  def eval_step(variables, batch):
    image = normalize(batch['image'])
    logits = model.apply(variables, image, train=False)
    return metrics.batch_sums(logits, batch['label'], batch['mask'])

  return eval_step


def evaluate(
    eval_step: EvalStep,
    variables: Mapping[str, Any],
    batches: Iterable[Mapping[str, np.ndarray]],
    place: Callable[[Any], Any] = jax.device_put,
) -> dict[str, Any]:
  """Returns the figures of `metrics.figures` over all batches.

  Args:
    eval_step: A jitted `make_eval_step`.
    variables: The model's parameters and statistics.
    batches: Each record once; padding has mask 0.
    place: Puts a batch on the devices.
  """
  return evaluate_each(eval_step, {'': variables}, batches, place)['']


def evaluate_each(
    eval_step: EvalStep,
    weights: Mapping[str, Mapping[str, Any]],
    batches: Iterable[Mapping[str, np.ndarray]],
    place: Callable[[Any], Any] = jax.device_put,
) -> dict[str, dict[str, Any]]:
  """Returns the figures of several weights of one model, by their names.

  The data are gone through once, as `evaluate` does: loading them may take
  longer than the model does.
  """
  total = None
  results = (
      {name: eval_step(of, batch) for name, of in weights.items()}
      for batch in map(place, batches)
  )
  for part in fetched(results):
    part = jax.tree.map(np.float64, part)
    total = part if total is None else jax.tree.map(np.add, total, part)
  return {name: metrics.figures(sums) for name, sums in total.items()}


def fetched(results: Iterable[Any]) -> Iterator[Any]:
  """Yields what is computed on the device, in order, on the host.

  A few are begun before the first is waited for. No more: a confusion matrix of
  many classes, or the maps of a batch, are large.
  """
  waiting = collections.deque()
  for result in results:
    waiting.append(result)
    if len(waiting) > _AHEAD:
      yield jax.device_get(waiting.popleft())
  while waiting:
    yield jax.device_get(waiting.popleft())
