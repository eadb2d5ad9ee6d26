"""Converts a PyTorch checkpoint of RMT to a folder of weights."""

from collections.abc import Sequence
import pathlib

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense import create
from gswinrmt_jax.terminal import counted, Terminal
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import rmt_checkpoint, safetensors_file


def convert(
    source: pathlib.Path,
    folder: pathlib.Path,
    *,
    key: str | None = None,
    full_stages: Sequence[int] | None = None,
    terminal: Terminal | None = None,
) -> None:
  """Converts a checkpoint and prints which arrays were loaded and which not.

  Args:
    source: A file of `torch.save`.
    folder: The folder to create, atomically; must not exist.
    key: Entry of the file to take; None searches for it.
    full_stages: Required for a model that is not a released one, see
      `rmt_checkpoint.recognise`.
    terminal: Where the report is printed.

  Raises:
    UserError: If the folder exists, or the file cannot be read, is not an RMT,
      or lacks some of its arrays.
  """
  terminal = terminal or Terminal()
  if folder.exists():
    raise UserError(f'{folder} is there already: choose another')
  found = rmt_checkpoint.read(source, key=key, full_stages=full_stages)
  card, match = found.card, found.match
  entry = f', entry {found.where}' if found.where else ''
  head = 'no head'
  if card.num_classes:
    head = counted(card.num_classes, 'class', 'classes')
  if card.dense is not None:
    head = f'{create.TITLES[card.dense["head"]]}, {head}'
  model = factory.describe(card.name, card.fields)
  terminal.say(f'{source}{entry}: {model}, {head}')
  for line in match.lines():
    terminal.say(line)
  for name in found.others:
    terminal.say(f'left out: {name}')
  if not match.is_whole:
    raise UserError(
        f'{source} is not a complete {card.name}: {len(match.missing)} arrays '
        f'missing, {len(match.mismatched)} that differ; nothing was written'
    )
  folder.parent.mkdir(parents=True, exist_ok=True)
  with files.replaced(folder) as part:
    part.mkdir()
    safetensors_file.write(part / safetensors_file.NAME, match.variables, card)
    files.write_json(part / card_lib.FILE, card.to_dict())
  where = '{} x {} images'.format(*card.image_size)
  if card.fit_within:
    where = 'images within {} x {} pixels'.format(*card.fit_within)
  terminal.say(
      f'Written to {folder}, for {where}, normalised with '
      f'mean {card.mean} and std {card.std}.'
  )
