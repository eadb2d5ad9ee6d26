"""Parameters, whose shape is known without tracing what makes them."""

from flax import errors
from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array
import numpy as np


def parameter(
    module: nn.Module,
    name: str,
    init: jax.nn.initializers.Initializer,
    shape: tuple[int, ...],
) -> Array | np.ndarray:
  """Makes or returns a float32 parameter, as `module.param` does.

  That one traces `init` to know the shape that a parameter should have, each
  time that a model is traced; here it is given.

  Args:
    module: The module that has the parameter.
    name: Its name there.
    init: What makes it.
    shape: Its shape.

  Raises:
    flax.errors.ScopeParamShapeError: If the one that is there has another.
  """
  if module.is_initializing() or not module.has_variable('params', name):
    return module.param(name, init, shape, jnp.float32)
  value = module.get_variable('params', name)
  if value.shape != shape:
    path = module.scope.path_text
    raise errors.ScopeParamShapeError(name, path, value.shape, shape)
  return value
