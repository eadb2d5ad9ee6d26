"""`pytorch_model.pth`: a state dict that the released RMT code loads."""

import dataclasses
import pathlib

import numpy as np

from gswinrmt_jax.deploy import served
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import state_dict, torch_file, torch_writer
from gswinrmt_jax.weights.load import Weights


def write(
    weights: Weights, folder: pathlib.Path
) -> tuple[pathlib.Path, np.ndarray]:
  """Writes the file; returns it and the logits of what is in it.

  Raises:
    UserError: If the released code has no such model.
  """
  model = weights.make_model()
  try:
    state_dict.check_is_rmt(model.arch)
  except ValueError as error:
    raise UserError(str(error)) from error
  if weights.card.num_classes and model.arch.head != 'proj':
    raise UserError(
        f'the released RMT code has no head like that of {weights.card.name}: '
        'only head=proj can be written'
    )
  path = folder / 'pytorch_model.pth'
  arrays = state_dict.to_torch_state_dict(weights.variables, model)
  torch_writer.write(path, {'model': arrays})
  variables = state_dict.from_torch_state_dict(
      torch_file.read(path)['model'], model
  )
  read = dataclasses.replace(weights, variables=variables)
  return path, served.logits(read)
