"""Weights as one `.safetensors` file, with their card and a checksum inside."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any
import zlib

from flax import traverse_util
import jax
import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import printable
from gswinrmt_jax.weights import card as card_lib

NAME = 'model.safetensors'  # in a folder

# Keys among the file's metadata.
_CARD = 'config'
_CHECKSUM = 'crc32'


def write(
    path: pathlib.Path, variables: Mapping[str, Any], card: card_lib.Card
) -> None:
  """Writes weights and card, atomically.

  Arrays are named by their paths, such as 'params/stem/conv0/kernel'.
  """
  from safetensors import numpy as safetensors

  flat = traverse_util.flatten_dict(dict(variables), sep='/')
  # safetensors writes the memory of an array as if it were in C order.
  arrays = {
      name: np.ascontiguousarray(jax.device_get(array))
      for name, array in flat.items()
  }
  text = json.dumps(card.to_dict())
  metadata = {
      'format': 'flax',
      _CARD: text,
      _CHECKSUM: str(_checksum(arrays, text)),
  }
  with files.replaced(path) as part:
    # `save_file` would create a file that only its owner can read.
    part.write_bytes(safetensors.save(arrays, metadata=metadata))


def read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], card_lib.Card]:
  """Returns the arrays by path, and the card.

  A `config.json` next to the file is read only if there is no card inside.
  Files without a checksum, as other libraries write them, are not checked.

  Raises:
    UserError: If the file cannot be read, has a dtype that NumPy lacks, fails
      its checksum, or has no card.
  """
  import safetensors

  try:
    with path.open('rb'):
      pass  # safetensors takes each error here for a missing file.
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      metadata = file.metadata() or {}
      arrays = {name: file.get_tensor(name) for name in file.keys()}
  except (safetensors.SafetensorError, OSError) as error:
    reason = printable(str(error))[:160]
    raise UserError(f'{path} is damaged: {reason}') from error
  except AttributeError as error:  # NumPy lacks float8, for one.
    raise UserError(f'{path} cannot be read: {error}') from error
  text, expected = metadata.get(_CARD, ''), metadata.get(_CHECKSUM)
  if expected is not None and expected != str(_checksum(arrays, text)):
    raise UserError(
        f'{path} is damaged: its checksum differs from that of its contents; '
        'take another copy'
    )
  if not text:
    card = card_lib.read(path.with_name(card_lib.FILE))
  else:
    try:
      card = card_lib.from_dict(json.loads(text), str(path))
    except (ValueError, RecursionError) as error:
      raise UserError(f'{path} has damaged metadata: {error}') from error
  if card is None:
    raise UserError(
        f'{path} does not say which model it is for, and there is no '
        f'{card_lib.FILE} of gswinrmt_jax next to it'
    )
  return arrays, card


def _checksum(arrays, text):
  """Returns the CRC-32 of the card and of all names, dtypes, shapes, values."""
  total = zlib.crc32(text.encode())
  for name, array in sorted(arrays.items()):
    total = zlib.crc32(f'{name} {array.dtype} {array.shape}'.encode(), total)
    total = zlib.crc32(array, total)
  return total
