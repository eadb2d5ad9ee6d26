"""`model.onnx`: the program in float32, for runtimes that are not JAX."""

import logging
import pathlib

import jax
import numpy as np

from gswinrmt_jax.deploy import served
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights.load import Weights


def write(
    weights: Weights, folder: pathlib.Path
) -> tuple[pathlib.Path, np.ndarray]:
  """Writes the file; returns it and the logits that onnxruntime computes.

  Raises:
    UserError: If jax2onnx or onnxruntime is missing.
  """
  try:
    import jax2onnx
    import onnxruntime
  except ImportError as error:
    raise UserError(
        f"{error.name} is missing: pip install 'gswinrmt_jax[onnx]'"
    ) from error
  # It warns of every shape that it leaves to the runtime.
  logging.getLogger('onnx_ir').setLevel(logging.ERROR)
  height, width = weights.card.image_size
  # Convolutions, not shifted sums: that is what runtimes are made for.
  program = served.make(weights, 'conv')
  path = folder / 'model.onnx'
  model = jax2onnx.to_onnx(
      lambda pixels: program(pixels, weights.variables),
      inputs=[jax.ShapeDtypeStruct(('b', height, width, 3), np.uint8)],
      model_name=weights.card.name,
  )
  path.write_bytes(model.SerializeToString())
  session = onnxruntime.InferenceSession(
      path, providers=['CPUExecutionProvider']
  )
  name = session.get_inputs()[0].name
  (logits,) = session.run(None, {name: served.samples(weights)})
  return path, logits
