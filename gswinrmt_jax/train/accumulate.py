"""Gradients of a batch that is taken in parts, one after another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# (params, batch_stats, part, index) -> (loss, (accuracy, batch_stats))
LossOfPart = Callable[
    [Any, Any, Any, jax.Array | int],
    tuple[jax.Array, tuple[jax.Array, Any]],
]


def split(batch: Any, steps: int) -> Any:
  """Returns the parts of a batch, one behind another along a new first axis.

      part[a, 2 p + q] = batch[2 (p steps + a) + q],   q = 0, 1

  Neighbours stay together, since mixing pairs them, and each part has rows from
  all over the batch. So it does not depend on how many devices share the batch
  which rows are a part, and no row moves from one device to another.

  Args:
    batch: Arrays [b ...], b a multiple of `2 steps`.
    steps: Number of parts.

  Returns:
    Arrays [steps b/steps ...].
  """

  def one(rows):
    count, *rest = rows.shape
    pairs = rows.reshape(count // (2 * steps), steps, 2, *rest)
    return pairs.swapaxes(0, 1).reshape(steps, count // steps, *rest)

  return jax.tree.map(one, batch)


def value_and_grad(
    loss_of_part: LossOfPart,
    params: Any,
    batch_stats: Any,
    batch: Any,
    *,
    steps: int,
    reduce: Callable[[Any], Any],
) -> tuple[jax.Array, jax.Array, Any, Any]:
  """Returns what the whole batch would give a model without BatchNorm.

      L = 1/A sum_a L_a,   g = 1/A sum_a g_a

  A BatchNorm normalises each part by the part's own statistics, and moves its
  running ones once for each part.

  Args:
    loss_of_part: Mean loss and accuracy of a part, and statistics behind it.
    params: What the gradient is with respect to.
    batch_stats: Running statistics before the batch.
    batch: Arrays [b ...].
    steps: `A`, the number of parts.
    reduce: Applied to each part's gradient before it is added up.

  Returns:
    Loss, accuracy, running statistics and gradient.
  """
  gradient = jax.value_and_grad(loss_of_part, has_aux=True)
  if steps == 1:
    (loss, (accuracy, batch_stats)), grads = gradient(
        params, batch_stats, batch, 0
    )
    return loss, accuracy, batch_stats, reduce(grads)

  def add(carry, part):
    batch_stats, total = carry
    (loss, (accuracy, batch_stats)), grads = gradient(
        params, batch_stats, *part
    )
    total = jax.tree.map(jnp.add, total, (loss, accuracy, reduce(grads)))
    return (batch_stats, total), None

  zero = jnp.zeros((), jnp.float32)
  zeros = reduce(jax.tree.map(jnp.zeros_like, params))
  # On a CPU the gradient of a convolution is 10 to 40 times slower in a loop.
  unroll = jax.default_backend() == 'cpu'
  (batch_stats, total), _ = jax.lax.scan(
      add,
      (batch_stats, (zero, zero, zeros)),
      (split(batch, steps), jnp.arange(steps)),
      unroll=unroll,
  )
  loss, accuracy, grads = jax.tree.map(lambda each: each / steps, total)
  return loss, accuracy, batch_stats, grads
