"""From a PyTorch checkpoint of RMT to a folder of weights."""

from collections.abc import Sequence
import pathlib

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interop import recognition, state_dict, torch_file
from gswinrmt_jax.training import log, weights, weights_folder


def convert(
    source: pathlib.Path,
    folder: pathlib.Path,
    *,
    key: str | None = None,
    full_stages: Sequence[int] | None = None,
    terminal: log.Terminal | None = None,
) -> None:
  """Converts a checkpoint; prints what was loaded and what was not.

  Args:
    source: A file of `torch.save`.
    folder: To make.
    key: Entry of the file to take; None finds it.
    full_stages: Of a model that is none of the released, see
      `recognition.recognise`.
    terminal: Where the report goes.

  Raises:
    UserError: If the file cannot be read, is no RMT, or lacks arrays of one.
  """
  terminal = terminal or log.Terminal()
  if folder.exists():
    raise UserError(f'{folder} is there already: choose another')
  where, arrays, others = recognition.unwrap(torch_file.read(source), key)
  found = recognition.recognise(arrays, full_stages)
  card = weights.released_card(found)
  model = card.make_model()
  match = state_dict.match_state_dict(arrays, model)
  changed = ', '.join(f'{name}={value}' for name, value in found.fields.items())
  head = f'{found.num_classes} classes' if found.num_classes else 'no head'
  terminal.say(
      f'{source}{f", entry {where}" if where else ""}: {found.name}, {head}'
      f'{f" ({changed})" if changed else ""}'
  )
  for line in match.lines():
    terminal.say(line)
  if others:
    terminal.say(f'left out: {others} arrays of other parts')
  if match.missing or match.mismatched:
    raise UserError(
        f'{source} has not all of {found.name}: {len(match.missing)} arrays '
        f'missing, {len(match.mismatched)} that differ; nothing was written'
    )
  weights_folder.write(folder, match.variables, card)
  terminal.say(f'Written to {folder}.')
