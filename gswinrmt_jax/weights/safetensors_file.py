"""Weights as one `.safetensors` file, with their card inside."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import card as card_lib

_CARD = 'config'  # its key among the file's metadata


def write(
    path: pathlib.Path, variables: Mapping[str, Any], card: card_lib.Card
) -> None:
  """Writes weights and card, whole or not at all.

  Args:
    path: The file.
    variables: Those of the card's model; names are paths, such as
      'params/stem/conv0/kernel'.
    card: What they are for.
  """
  from safetensors import numpy as safetensors

  flat = traverse_util.flatten_dict(dict(variables), sep='/')
  # Arrays that do not lie as C has them would be saved as if they did.
  arrays = {
      name: np.ascontiguousarray(jax.device_get(array))
      for name, array in flat.items()
  }
  metadata = {'format': 'flax', _CARD: json.dumps(card.to_dict())}
  with files.replacing(path) as part:
    # Not by its `save_file`, which makes files that only their owner reads.
    part.write_bytes(safetensors.save(arrays, metadata=metadata))


def read(path: pathlib.Path) -> tuple[dict[str, Any], card_lib.Card]:
  """Returns weights and card; the card may be in a `config.json` beside.

  Raises:
    UserError: If the file cannot be read, or there is no card.
  """
  import safetensors

  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      metadata = file.metadata() or {}
      flat = {name: jnp.asarray(file.get_tensor(name)) for name in file.keys()}
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except (safetensors.SafetensorError, OSError) as error:
    raise UserError(f'{path} is damaged: {error}') from error
  beside = path.with_name(card_lib.FILE)
  if _CARD in metadata:
    fields, where = _parsed(metadata[_CARD], path), str(path)
  elif beside.exists():
    fields, where = card_lib.read(beside), str(beside)
  else:
    raise UserError(
        f'{path} does not say which model it is for, and there is no '
        f'{card_lib.FILE} beside it'
    )
  card = card_lib.from_dict(fields, where)
  return traverse_util.unflatten_dict(flat, sep='/'), card


def _parsed(text, path):
  try:
    return json.loads(text)
  except ValueError as error:
    raise UserError(f'{path} has a damaged card: {error}') from error
