"""A pass over a data set: every image once."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flax import linen as nn
import jax
import numpy as np

from gswinrmt_jax.evals import metrics

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
  return begin(eval_step, {'': variables}, batches, place)()['']


def begin(
    eval_step: EvalStep,
    weights: Mapping[str, Mapping[str, Any]],
    batches: Iterable[Mapping[str, np.ndarray]],
    place: Callable[[Any], Any] = jax.device_put,
) -> Callable[[], dict[str, dict[str, Any]]]:
  """Begins what `evaluate` does, for several weights of one model.

  The data are gone through once: loading them may take longer than the model
  does. When this returns, all batches have been sent and the last few are under
  way: the devices have work until the next is sent, and the memory of the
  weights may be donated to that.

  Returns:
    What waits for the end and returns the figures of each by its name.
  """
  results = (
      {name: eval_step(of, batch) for name, of in weights.items()}
      for batch in map(place, batches)
  )
  under_way = collections.deque()
  total = _sum(None, _all_but_last(results, under_way))

  def figures():
    sums = _sum(total, map(jax.device_get, under_way))
    return {name: metrics.figures(of) for name, of in sums.items()}

  return figures


def _sum(total, parts):
  for part in parts:
    part = jax.tree.map(np.float64, part)
    total = part if total is None else jax.tree.map(np.add, total, part)
  return total


def fetched(results: Iterable[Any]) -> Iterator[Any]:
  """Yields what is computed on the device, in order, on the host."""
  under_way = collections.deque()
  yield from _all_but_last(results, under_way)
  yield from map(jax.device_get, under_way)


def _all_but_last(results, under_way):
  """Yields results on the host, while the next few are computed.

  These are in `under_way`, where the last are left. No more than a few: a
  confusion matrix of many classes, or the maps of a batch, are large.
  """
  for result in results:
    under_way.append(result)
    if len(under_way) > _AHEAD:
      yield jax.device_get(under_way.popleft())
