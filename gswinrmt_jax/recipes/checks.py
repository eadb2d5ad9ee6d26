"""Checks the values of a config, each by itself and together."""

import re
from typing import Any

import ml_collections

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.recipes.field import refuse, SECTIONS, task
from gswinrmt_jax.recipes.fields import FIELDS

# The first field of each pair must not exceed the second.
_AT_MOST = {
    'optimizer.warmup_learning_rate': 'optimizer.learning_rate',
    'optimizer.final_learning_rate': 'optimizer.learning_rate',
}


def off_for(task: str) -> dict[str, Any]:
  """Returns the values that turn off what a task does not support."""
  return {
      path: field.off
      for path, field in FIELDS.items()
      if field.off is not None and task not in field.tasks
  }


def check(config: ml_collections.ConfigDict) -> None:
  """Checks all fields of a config except the model's, which `resolve` checks.

  Raises:
    UserError: If a field is out of range, or two contradict each other; the
      message names the field.
  """
  check_values(config)
  _check_together(config)


def check_values(config: ml_collections.ConfigDict) -> None:
  """Checks each field by itself, as `check` does."""
  for path, declared in FIELDS.items():
    refuse(path, config[path], declared.wanted(config[path]))
  for name, value in config.model.items():
    if isinstance(value, ml_collections.ConfigDict):
      refuse(f'model.{name}', value, 'one value')


def _check_together(config):
  """Refuses values that contradict each other."""
  data = config.data
  for path, other in _AT_MOST.items():
    value, most = config[path], config[other]
    if value > most:
      refuse(path, value, f'at most config.{other}, {most}')
  if bool(config.num_epochs) == bool(config.num_steps):
    raise UserError(
        f'config.num_epochs is {config.num_epochs} and config.num_steps '
        f'{config.num_steps}: set exactly one of them'
    )
  if not re.fullmatch(r'(\d+:\d+)?', config.profile_steps, re.ASCII):
    wanted = 'FIRST:LAST, two step numbers'
    refuse('profile_steps', config.profile_steps, wanted)
  # Bounds `image_size / eval_crop`, the size that images are resized to.
  if 0 < data.eval_crop < 0.1:
    refuse('data.eval_crop', data.eval_crop, '0, or from 0.1 to 1')
  longer, shorter = data.fit_within
  if longer < shorter or bool(longer) != bool(shorter):
    refuse(
        'data.fit_within',
        data.fit_within,
        'two numbers above 0, or (0, 0), the longer side first',
    )
  if data.eval_crop and not data.image_size:
    raise UserError('config.data.eval_crop needs config.data.image_size')
  drawn = data.train_crop == 'random_resized'
  if drawn and (data.storage != 'decode' or not data.image_size):
    raise UserError(
        'config.data.train_crop=random_resized needs config.data.storage='
        'decode and config.data.image_size'
    )
  # In smaller batches, Mixup could pair copies of the same image.
  most = max(1, config.batch_size // 3)
  if data.repeats > most:
    third = f'a third of config.batch_size, {config.batch_size}'
    refuse('data.repeats', data.repeats, f'from 1 to {third}')
  _check_rand_augment(config.augment)
  _check_optimizer(config.optimizer)
  for field in ('freeze', 'freeze_statistics'):
    value = config.optimizer[field]
    if value and not config.init_from:
      raise UserError(
          f'config.optimizer.{field} is {value!r} without config.init_from: '
          'random values would be frozen'
      )
  weight, maps = config.token_label_weight, data.label_maps
  if bool(weight) != bool(maps):
    raise UserError(
        f'config.token_label_weight is {weight} and config.data.label_maps '
        f"'{maps}': token labels need both, other training neither"
    )
  _check_task(config)


def _check_rand_augment(augment):
  """Refuses settings that the set of operations does not support."""
  if not augment.rand_augment_ops:
    return
  magnitude = augment.rand_augment_magnitude
  if augment.rand_augment_set == 'timm':
    rules = {'magnitude': (magnitude <= 10, 'from 0 to 10')}
  else:
    rules = {
        'magnitude': (magnitude % 1 == 0, 'a whole number'),
        'std': (augment.rand_augment_std == 0, '0'),
        'prob': (augment.rand_augment_prob == 1, '1'),
    }
  for name, (allowed, wanted) in rules.items():
    if not allowed:
      field = f'rand_augment_{name}'
      wanted += f" with the operations of '{augment.rand_augment_set}'"
      refuse(f'augment.{field}', augment[field], wanted)


def _check_optimizer(optimizer):
  """Refuses settings that contradict each other."""
  if optimizer.warmup_steps and optimizer.warmup_epochs:
    raise UserError(
        f'config.optimizer.warmup_steps is {optimizer.warmup_steps} and '
        f'config.optimizer.warmup_epochs {optimizer.warmup_epochs:g}: one of '
        'them must be 0'
    )
  if optimizer.warmup_steps and optimizer.schedule == 'epochs':
    refuse(
        'optimizer.warmup_steps',
        optimizer.warmup_steps,
        "0 with config.optimizer.schedule='epochs'",
    )
  if optimizer.decay_layer_scale and optimizer.decay != 'kernels':
    refuse(
        'optimizer.decay', optimizer.decay, "'kernels' with decay_layer_scale"
    )


def _check_task(config):
  """Refuses settings of the models of another task."""
  own, heads = task(config), (config.segmenter.head, config.detector.head)
  if all(heads):
    raise UserError(
        f'config.segmenter.head is {heads[0]!r} and config.detector.head '
        f'{heads[1]!r}: one of them must be empty'
    )
  wanted = {
      path: (off, f'for a {SECTIONS[own]}')
      for path, off in off_for(own).items()
  }
  for path, field in FIELDS.items():
    if own not in field.tasks and 'classification' not in field.tasks:
      needs = field.unread(config)
      wanted[path] = field.default, f'without config.{needs}'
  if own == 'segmentation' and config.segmenter.mean_over != 'all':
    wanted['accumulate_steps'] = (
        1,
        "unless config.segmenter.mean_over='all': parts of a batch have "
        'different numbers of labelled pixels',
    )
  if config.token_label_weight:
    when = 'with token labels, whose maps are not adjusted for it'
    fields = ('crop_padding', 'flip_vertical', 'mixup_alpha', 'cutmix_alpha')
    for name in fields:
      wanted.setdefault(f'augment.{name}', (0, when))
  for path, (value, when) in wanted.items():
    if config[path] != value:
      refuse(path, config[path], f'{value!r} {when}')
