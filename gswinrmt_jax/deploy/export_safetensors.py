"""`model.safetensors`: the arrays, with the card inside."""

import dataclasses
import pathlib

import numpy as np

from gswinrmt_jax.deploy import served
from gswinrmt_jax.weights import safetensors_file
from gswinrmt_jax.weights.load import Weights


def write(
    weights: Weights, folder: pathlib.Path
) -> tuple[pathlib.Path, np.ndarray]:
  """Writes the file; returns it and the logits of what is in it."""
  path = folder / 'model.safetensors'
  safetensors_file.write(path, weights.variables, weights.card)
  variables, card = safetensors_file.read(path)
  read = dataclasses.replace(weights, variables=variables, card=card)
  return path, served.logits(read)
