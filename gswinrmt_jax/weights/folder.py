"""A folder of weights only: an Orbax checkpoint and its card.

FOLDER/config.json   the card, with checksums of the values
FOLDER/weights       Orbax: {'params', 'batch_stats'}
"""

from collections.abc import Mapping
import pathlib
from typing import Any

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import checksums
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.weights import card as card_lib

_WEIGHTS = 'weights'
_CHECKSUMS = 'crc32'


def is_one(folder: pathlib.Path) -> bool:
  """Returns whether a folder is one of weights, not a run's."""
  return (folder / _WEIGHTS).is_dir()


def write(
    folder: pathlib.Path, variables: Mapping[str, Any], card: card_lib.Card
) -> None:
  """Writes weights and card, whole or not at all.

  Raises:
    UserError: If the folder exists.
  """
  import orbax.checkpoint as ocp

  if folder.exists():
    raise UserError(f'{folder} is there already: choose another')
  folder = folder.absolute()
  folder.parent.mkdir(parents=True, exist_ok=True)
  with files.replaced(folder) as part, ocp.PyTreeCheckpointer() as writer:
    part.mkdir()
    writer.save(part / _WEIGHTS, variables)
    fields = {**card.to_dict(), _CHECKSUMS: _checksums(variables)}
    files.write_json(part / card_lib.FILE, fields)


def read(folder: pathlib.Path) -> tuple[dict[str, Any], card_lib.Card]:
  """Returns weights, a copy on each device, and card.

  Raises:
    UserError: If either cannot be read, or the values changed.
  """
  import orbax.checkpoint as ocp

  card = card_lib.read(folder / card_lib.FILE)
  target = mesh.Devices().target(
      factory.variable_shapes(card.make_model(), (*card.image_size, 3))
  )
  try:
    with ocp.PyTreeCheckpointer() as reader:
      variables = reader.restore(
          (folder / _WEIGHTS).absolute(),
          item=target,
          restore_args=ocp.checkpoint_utils.construct_restore_args(target),
      )
  except Exception as error:  # Orbax and TensorStore raise all kinds.
    reason = str(error).strip().split('\n')[0] or type(error).__name__
    raise UserError(
        f'the weights in {folder} cannot be read ({reason[:160]})'
    ) from error
  sums = files.read_json(folder / card_lib.FILE).get(_CHECKSUMS)
  if sums not in (None, _checksums(variables)):
    raise UserError(
        f'the weights in {folder} are damaged: their checksum differs from '
        f'that in {card_lib.FILE}; take another copy'
    )
  return variables, card


def _checksums(variables):
  return {name: checksums.checksum(tree) for name, tree in variables.items()}
