"""Where the evidence for a class lies."""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gswinrmt_jax.maps import grid
from gswinrmt_jax.models import backbone


def grad_cam(
    model: backbone.Backbone,
    variables: Mapping[str, Any],
    image: Float[Array, 'h w 3'],
    label: Int[Array, ''] | int,
    stage: int,
) -> Float[Array, '_ _']:
  """Grad-CAM of a class on the map of a stage (arXiv 1610.02391, eq. 1, 2).

      cam = ReLU(sum_c mean_hw(dlogit / dA_c) A_c)

  Args:
    model: The classifier.
    variables: Its variables.
    image: Normalised.
    label: The class.
    stage: The stage, from 1, whose last map is `A`.

  Returns:
    One value per token, not negative.
  """
  extents = grid.extents(image.shape[:2], stage)
  shape = (1, *extents, model.arch.widths[stage - 1])

  def logit(change):
    """The logit, and the map, after `change` was added to the map."""
    found = []

    def add(next_function, args, kwargs, context):
      out = next_function(*args, **kwargs)
      module = context.module
      if isinstance(module, backbone.Stage) and module.stage == stage - 1:
        out += change
        found.append(out)
      return out

    with nn.intercept_methods(add):
      logits = model.apply(variables, image[None], train=False)
    (activation,) = found
    return logits[0, label], activation

  change = jnp.zeros(shape, model.dtype)
  gradient, activation = jax.grad(logit, has_aux=True)(change)
  importance = gradient.mean((0, 1, 2))
  return jax.nn.relu((activation[0] * importance[None, None]).sum(-1))
