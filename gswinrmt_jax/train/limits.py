"""What the fields of a recipe may be, before anything is made of them.

Here a value of another type is refused, and a number that no machine could work
with; what else a field asks of its values is checked where they are used, and
those of a model with the model.
"""

import os
from typing import Any

import ml_collections

from gswinrmt_jax.errors import UserError

_LONGEST = 1024  # characters of a name or path
_LARGEST = 3.4e38  # of float32
# The most of a field that is a whole number, or its type.
FIELDS = {
    'seed': 2**63 - 1,
    'dtype': str,
    'remat': str,
    'batch_size': 2**20,
    'accumulate_steps': 2**20,
    'eval_batch_size': 2**20,
    'num_epochs': 2**20,
    'stop_after_epochs': 2**20,
    'eval_every_epochs': 2**20,
    'log_every_steps': 2**31 - 1,
    'steps_per_dispatch': 2**20,
    'compile_effort': str,
    'mesh.data': 2**20,
    'mesh.fsdp': 2**20,
    'checkpoint_every_steps': 2**31 - 1,
    'profile_steps': str,
    'nan_policy': str,
    'ema_decay': float,
    'init_from': str,
    'label_smoothing': float,
    'token_label_weight': float,
    'model.name': str,
    'data.name': str,
    'data.dir': str,
    'data.train_split': str,
    'data.val_split': str,
    'data.test_split': str,
    'data.image_size': 2**11,
    'data.train_crop': str,
    'data.crop_scale': tuple,
    'data.crop_ratio': tuple,
    'data.eval_crop': float,
    'data.repeats': 2**20,
    'data.storage': str,
    'data.workers': 2**10,
    'data.label_maps': str,
    'augment.crop_padding': 2**12,
    'augment.flip': bool,
    'augment.rand_augment_ops': 2**10,
    'augment.rand_augment_magnitude': float,
    'augment.rand_augment_std': float,
    'augment.rand_augment_prob': float,
    'augment.erase_prob': float,
    'augment.mixup_alpha': float,
    'augment.cutmix_alpha': float,
    'optimizer.learning_rate': float,
    'optimizer.schedule': str,
    'optimizer.warmup_epochs': float,
    'optimizer.warmup_learning_rate': float,
    'optimizer.final_learning_rate': float,
    'optimizer.weight_decay': float,
    'optimizer.decay_layer_scale': bool,
    'optimizer.b1': float,
    'optimizer.b2': float,
    'optimizer.eps': float,
}


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the fields that a recipe has; of its model's, name and lengths.

  Raises:
    UserError: Names the first field whose value it cannot have.
  """
  for path, kind in FIELDS.items():
    section, _, field = path.rpartition('.')
    fields = config.get(section, {}) if section else config
    if not isinstance(fields, (dict, ml_collections.ConfigDict)):
      raise UserError(f'config.{section} must be a group of fields')
    if field not in fields:  # an older recipe
      continue
    _refuse(path, fields[field], _wanted(fields[field], kind))
  for field, value in config.model.items():
    group = isinstance(value, ml_collections.ConfigDict)
    if group or len(repr(value)) > _LONGEST:
      _refuse(f'model.{field}', value, 'one value, not too long')


def need(config: ml_collections.ConfigDict, *paths: str) -> None:
  """Checks that a recipe, which may be an older one or cut, has some fields.

  Raises:
    UserError: Names the first that it does not have.
  """
  for path in paths:
    section, _, field = path.rpartition('.')
    if field not in (config[section] if section else config):
      raise UserError(f'the recipe has no config.{path}')


def _refuse(path, value, wanted):
  if wanted:
    said = ' '.join(repr(value).split())  # a group has a line for each
    said = said if len(said) < 80 else f'{said[:80]} ...'
    raise UserError(f'config.{path} is {said}: must be {wanted}')


def _wanted(value: Any, kind: Any) -> str:
  """Returns what the value should be instead, '' if it will do."""
  if isinstance(kind, int):
    whole = isinstance(value, int) and not isinstance(value, bool)
    return '' if whole and value <= kind else f'a whole number up to {kind:,}'
  if kind is float:
    return '' if _is_number(value) else 'a number'
  if kind is tuple:
    pair = isinstance(value, tuple) and len(value) == 2
    return '' if pair and all(map(_is_number, value)) else 'two numbers'
  if kind is bool:
    return '' if isinstance(value, bool) else 'True or False'
  return '' if _is_text(value) else f'text of up to {_LONGEST:,} characters'


def _is_number(value):
  """Whether float32 has it; NaN is refused where the number is used."""
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return number and not abs(value) > _LARGEST


def _is_text(value):
  """Whether it could name a file."""
  if not isinstance(value, str) or len(value) > _LONGEST or '\0' in value:
    return False
  try:
    os.fsencode(value)
  except UnicodeEncodeError:
    return False
  return True
