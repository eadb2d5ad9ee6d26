"""Where the evidence for a class lies."""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn
import jax
from jaxtyping import Array, Float, Int

from gswinrmt_jax.models import backbone


def grad_cam(
    model: backbone.Backbone,
    variables: Mapping[str, Any],
    image: Float[Array, 'b h w 3'],
    activation: Float[Array, 'b y x c'],
    label: Int[Array, ''] | int,
    stage: int,
) -> Float[Array, 'b y x']:
  """Grad-CAM of a class on the map of a stage (arXiv 1610.02391, eq. 1, 2).

      cam = ReLU(sum_c mean_hw(dlogit / dA_c) A_c)

  Args:
    model: The classifier.
    variables: Its variables.
    image: Normalised; of it, only the shape matters.
    activation: `A`, what the stage returns for the image.
    label: The class.
    stage: The stage, from 1.

  Returns:
    One value per token, not negative.
  """

  def logit(activation):
    """The class's logit, with the map in place of what the stage returns."""

    def replace(next_function, args, kwargs, context):
      module = context.module
      if not isinstance(module, backbone.Stage) or module.stage >= stage:
        return next_function(*args, **kwargs)
      # Earlier stages need not run: nothing reads what they return.
      return activation if module.stage == stage - 1 else args[0]

    with nn.intercept_methods(replace):
      logits = model.apply(variables, image, train=False)
    return logits[:, label].sum()  # Each image's depends on its own map alone.

  gradient = jax.grad(logit)(activation)
  importance = gradient.mean((1, 2), keepdims=True)
  return jax.nn.relu((activation * importance).sum(-1))
