"""A pass over a data set: every image once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flax import linen as nn
import jax
import numpy as np

from gswinrmt_jax.training import metrics

EvalStep = Callable[
    [Mapping[str, Any], Mapping[str, jax.Array]], dict[str, jax.Array]
]


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
  # The sums stay on the device until all batches are under way.
  parts = [eval_step(variables, place(batch)) for batch in batches]
  parts = jax.device_get(parts)
  sums = jax.tree.map(lambda *leaves: np.sum(leaves, 0, np.float64), *parts)
  return metrics.figures(sums)
