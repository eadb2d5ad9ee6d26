"""The latency of a run's model, for `gswinrmt report`."""

import pathlib
from typing import Any

from gswinrmt_jax.benchmark import suite
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import run_folder
from gswinrmt_jax.weights import load


def run_spec(folder: pathlib.Path) -> suite.Spec:
  """Returns the spec of a run's model; its weights change no latency.

  Raises:
    UserError: If the folder is no run, or its images are not square.
  """
  card = load.run_card(folder, run_folder.load_config(folder))
  height, width = card.image_size
  if height != width:
    raise UserError(
        f'{folder}: latency is measured on square images, not {height}x{width}'
    )
  spec = suite.model_spec(
      card.name,
      'latency',
      batch=1,
      image_size=height,
      classes=len(card.class_names),
  )
  return {**spec, 'fields': card.fields}


def write(
    folder: pathlib.Path, row: dict[str, Any], machine: dict[str, Any]
) -> None:
  """Writes `latency.json` of the row that was measured.

  Raises:
    UserError: If it was not.
  """
  if 'milliseconds' not in row:
    raise UserError(f'{folder}: not measured: {row["not_measured"]}')
  run_folder.write_json(
      folder / 'latency.json',
      {
          'milliseconds': row['milliseconds'],
          'spread': row['spread'],
          'dtype': row['dtype'],
          **{name: machine[name] for name in ('device', 'threads', 'versions')},
      },
  )
