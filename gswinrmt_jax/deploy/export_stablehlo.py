"""`model.stablehlo`: a program for CPU and CUDA, any batch, weights inside.

To run it, with no part of this package:

    data = pathlib.Path('model.stablehlo').read_bytes()
    logits = jax.export.deserialize(data).call(pixels)  # uint8 [b h w 3]
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.deploy import served
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights.load import Weights

_PLATFORMS = ('cpu', 'cuda')


def write(
    weights: Weights, folder: pathlib.Path
) -> tuple[pathlib.Path, np.ndarray]:
  """Writes the file; returns it and the logits that it computes.

  Raises:
    UserError: If flatbuffers is missing.
  """
  try:
    import flatbuffers  # noqa: F401  jax.export needs it and does not say so
    from jax import export
  except ImportError as error:
    raise UserError(
        f"{error.name} is missing: pip install 'gswinrmt_jax[export]'"
    ) from error
  height, width = weights.card.image_size
  (batch,) = export.symbolic_shape('b')
  pixels = jax.ShapeDtypeStruct((batch, height, width, 3), jnp.uint8)
  forms = {
      'cpu': served.make(weights, 'shift'),
      'default': served.make(weights, 'conv'),
  }

  @jax.jit
  def program(pixels):  # The weights become constants, once for both.
    return jax.lax.platform_dependent(pixels, weights.variables, **forms)

  data = export.export(program, platforms=_PLATFORMS)(pixels).serialize()
  path = folder / 'model.stablehlo'
  path.write_bytes(data)
  read = export.deserialize(path.read_bytes())
  return path, np.asarray(read.call(jnp.asarray(served.samples(weights))))
