"""The folder of a run: its recipe, and whose it is."""

from collections.abc import Mapping
import pathlib
from typing import Any

import ml_collections

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import provenance
from gswinrmt_jax.train import build

write_json = files.write_json  # for callers that have not moved yet

# Fields that change no result, or only its rounding: a run may go on with other
# values.
FREE_FIELDS = frozenset(
    {
        'model.attention_impl',
        'model.depthwise_impl',
        'model.ffn_impl',
        'data.dir',
        'data.label_maps',  # the maps themselves are in data.json
        'data.storage',
        'data.test_split',
        'data.workers',
        'checkpoint_every_steps',
        'compile_effort',
        'eval_batch_size',
        'log_every_steps',
        'mesh.data',
        'mesh.fsdp',
        'nan_policy',  # changes nothing until a step is not finite
        'profile_steps',
        'remat',
        'stop_after_epochs',
    }
)
# Fields that recipes of earlier versions did not have.
_ADDED = {
    'accumulate_steps': 1,
    'checkpoint_every_steps': 0,
    'nan_policy': 'stop',
    'steps_per_dispatch': 0,
    'compile_effort': 'full',
    'remat': 'none',
    'profile_steps': '',
    'ema_decay': 0.0,
    'init_from': '',
    'token_label_weight': 0.0,
    'mesh': {'data': 0, 'fsdp': 1},
    'optimizer': {
        'schedule': 'cosine',
        'warmup_learning_rate': 0.0,
        'final_learning_rate': 0.0,
        'decay_layer_scale': False,
    },
    'data': {
        'image_size': 0,
        'train_crop': 'resize',
        'crop_scale': (0.08, 1.0),
        'crop_ratio': (0.75, 4 / 3),
        'repeats': 1,
        'eval_crop': 0.0,
        'storage': 'memory',
        'workers': 0,
        'label_maps': '',
    },
}


def check_folder(
    folder: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Checks that a run folder, if it is there, belongs to this recipe.

  Args:
    folder: The run folder.
    config: The resolved recipe.

  Raises:
    UserError: If it belongs to another recipe; names the differing fields.
  """
  if (folder / 'config.json').exists():
    _check_same(load_config(folder), config, folder)
  elif (folder / 'checkpoints').exists():
    raise UserError(
        f'{folder} has checkpoints but no config.json: choose another --workdir'
    )


def check_checkpoint(
    fields: Any, config: ml_collections.ConfigDict, where: pathlib.Path
) -> None:
  """Checks that a checkpoint belongs to this recipe, whatever its folder says.

  Args:
    fields: Its own `config`.
    config: The resolved recipe.
    where: Of the checkpoint.

  Raises:
    UserError: If it belongs to another recipe; names the differing fields.
  """
  _check_same(from_json(fields, str(where)), config, where)


def _check_same(found, config, where):
  differing = differences(found, config)
  if differing:
    raise UserError(
        f'{where} belongs to another config: {"; ".join(differing)}; '
        'choose another --workdir'
    )


def open_folder(
    folder: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Makes the run folder, or goes on in one that belongs to this recipe.

  Args:
    folder: The run folder.
    config: The resolved recipe; written to `config.json` if there is none.

  Raises:
    UserError: If it cannot be written, or belongs to another recipe.
  """
  try:
    check_folder(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / 'config.json').exists():
      files.write_json(folder / 'config.json', config.to_dict())
  except OSError as error:
    raise UserError(
        f'cannot write to {folder}: {error.strerror or error}; choose another '
        '--workdir'
    ) from error


def load_config(folder: pathlib.Path) -> ml_collections.ConfigDict:
  """Returns the recipe of a run folder, resolved.

  Fields that it does not have, being older, are as they were before they came.

  Raises:
    UserError: If there is none that can be read.
  """
  path = folder / 'config.json'
  try:
    fields = files.read_json(path)
  except FileNotFoundError:
    raise UserError(
        f'{folder} is no run folder: it has no config.json'
    ) from None
  return from_json(fields, str(path))


def from_json(fields: Any, where: str) -> ml_collections.ConfigDict:
  """Returns the recipe of a `config.json`, of earlier versions too, resolved.

  Args:
    fields: What the file holds.
    where: The file's name, for the message.

  Raises:
    UserError: If it is no recipe, or one that this version does not know.
  """
  _check_form(where, fields)
  # JSON knows no tuples, and a model with a list for a field has no hash.
  fields = _tuples(_filled(_ADDED, fields))
  try:
    recipe = ml_collections.ConfigDict(fields)
  except (ValueError, TypeError, AttributeError) as error:  # names of fields
    raise UserError(f'{where} is not the recipe of a run: {error}') from error
  try:
    return build.resolve(recipe)
  except UserError as error:
    raise UserError(f'{where}: {error}') from error


def differences(
    old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Lists `field is OLD there and NEW here`, for fields that change results."""
  old, new = _flat(old.to_dict()), _flat(new.to_dict())
  return [
      f'{field} is {value!r} there and {new.get(field)!r} here'
      for field, value in sorted(old.items())
      if field not in FREE_FIELDS and value != new.get(field)
  ]


def record_start(
    folder: pathlib.Path, config: ml_collections.ConfigDict, step: int
) -> None:
  """Adds this start to `provenance.json`, see `provenance.record`.

  And keeps the recipe, whose free fields may be others than before: not until
  what there is has been restored, since it is by its recipe that it can be.
  """
  files.write_json(folder / 'config.json', config.to_dict())
  provenance.record(folder, config, step)


def _check_form(where, fields):
  """Refuses JSON that is no recipe, such as another library's config.json."""
  sections = ('model', *(n for n, v in _ADDED.items() if isinstance(v, dict)))
  whole = isinstance(fields, dict) and all(
      isinstance(fields.get(name, {}), dict) for name in sections
  )
  if not whole or not isinstance(fields.get('model', {}).get('name'), str):
    raise UserError(f'{where} is not the recipe of a run: it names no model')


def _filled(added, fields):
  """Returns the fields, with those of `added` that are not among them."""
  filled = {**added, **fields}
  for name, value in added.items():
    if isinstance(value, Mapping):
      filled[name] = _filled(value, fields.get(name, {}))
  return filled


def _tuples(value):
  if isinstance(value, Mapping):
    return {name: _tuples(inner) for name, inner in value.items()}
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _flat(fields, prefix=''):
  flat = {}
  for name, value in fields.items():
    if isinstance(value, Mapping):
      flat |= _flat(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
