"""Resolves a config to one that a run can be built from, and builds its model.

JAX is imported where it is needed: listing recipes and `--help` need not wait
for it.
"""

from collections.abc import Mapping
import re
from typing import Any

import ml_collections

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.recipes.checks import check
from gswinrmt_jax.recipes.field import refuse, SECTIONS, task
from gswinrmt_jax.recipes.fields import FIELDS

# Fields of earlier versions; they affected at most rounding.
_RETIRED = 'steps_per_dispatch', 'mesh', 'attention_impl', 'depthwise_impl'


def free_fields() -> frozenset[str]:
  """Returns the fields that may change when a run resumes."""
  return frozenset(path for path in FIELDS if FIELDS[path].free)


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns a copy in which every field of the model has its value.

  The copy is stored in the run folder, so that a run keeps its model if a later
  version changes a default.

  Raises:
    UserError: As in `check`, or if the model or one of its fields is unknown,
      or its fields do not go together.
  """
  from gswinrmt_jax.models import architecture

  check(config)
  resolved = ml_collections.ConfigDict(config.to_dict())
  resolved.update_from_flattened_dict(head_values(config))
  fields = model_fields(config)
  name = fields.pop('name')
  try:
    architecture.Architecture(**fields)
  except ValueError as error:
    raise UserError(f'config.model, {name}: {error}') from error
  resolved.model = {'name': name, **fields}
  _check_training(resolved)
  return resolved.lock()


def _check_training(config):
  """Refuses settings of the training that the model does not support."""
  model, freeze = config.model, config.optimizer.freeze
  stages = len(model.depths)
  if freeze.startswith('stage') and int(freeze.removeprefix('stage')) > stages:
    raise UserError(
        f"config.optimizer.freeze is '{freeze}': the model has stage1 to "
        f'stage{stages}'
    )
  if config.token_label_weight and not model.dense_head:
    raise UserError(
        f'token labels need a model with a dense head, not {model.name}: take '
        'rmt_s_tl, rmt_b_tl or rmt_l_tl, or set config.model.dense_head=True'
    )


def model_fields(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the name of the model and the value of each of its fields.

  Args:
    config: A config, whose other fields may be invalid.

  Raises:
    UserError: If the model or one of its fields is unknown, or a segmenter or
      detector has no such field.
  """
  from gswinrmt_jax.models import factory

  overrides = dict(config.model)
  name = overrides.pop('name')
  own = task(config)
  dense = own != 'classification'
  if dense and overrides.get('feature_norm') is None:
    overrides['feature_norm'] = True  # as in `create_segmenter`
  try:
    fields, named = (factory.resolve(name, x) for x in (overrides, {}))
  except ValueError as error:
    raise UserError(f'config.model: {error}') from error
  for field in ('head', 'dense_head'):  # A dense model has its own head.
    if dense and fields[field] != named[field]:
      wanted = f'{named[field]!r} for a {SECTIONS[own]}'
      refuse(f'model.{field}', fields[field], wanted)
  return {'name': name, **fields}


def head_values(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the value of each field of a dense model's head, by its path.

  Args:
    config: A checked config.
  """
  section = SECTIONS.get(task(config))
  fields = head_fields(config) or {}
  return {f'{section}.{name}': value for name, value in fields.items()}


def head_fields(config: ml_collections.ConfigDict) -> dict[str, Any] | None:
  """Returns the arguments that define the head of a dense model.

  They are those of `create_segmenter` or `create_detector`. For a classifier,
  None.

  Args:
    config: A checked config.
  """
  from gswinrmt_jax.models.dense import detector, segmenter

  section = SECTIONS.get(task(config))
  if section is None:
    return None
  given = config[section]
  fields = {'head': given.head}
  if section == 'segmenter':
    released = segmenter.HEADS[given.head]
  else:
    fields['round_extents'] = given.round_extents
    released = {
        name: value
        for name, value in detector.head_fields(given.head).items()
        if name in given and not FIELDS[f'detector.{name}'].unread(config)
    }
  return fields | {
      name: value if given[name] == -1 else given[name]
      for name, value in released.items()
  }


def make_model(
    config: ml_collections.ConfigDict,
    num_classes: int,
    image_shape: tuple[int, int, int] | None = None,
) -> Any:
  """Returns the model of a resolved config, checked for images of this shape.

  By default, the shape is that of the smallest image that the model takes.

  Raises:
    UserError: If the model cannot be built, or not for such images.
  """
  from gswinrmt_jax.models import factory
  from gswinrmt_jax.models.dense import create

  fields, own = dict(config.model), head_fields(config)
  name = fields.pop('name')
  try:
    model = create.create(
        name,
        own,
        num_classes=num_classes,
        dtype=config.dtype,
        remat=config.remat,
        **fields,
    )
    factory.variable_shapes(model, image_shape)
  except ValueError as error:
    # Its first word is the field, of the model or of the head.
    if own and re.match(r'\w*', str(error))[0] in own:
      section = SECTIONS[task(config)]
      raise UserError(f'config.{section}.{error}') from error
    raise UserError(f'config.model, {name}: {error}') from error
  return model


def from_json(fields: Any, where: str) -> ml_collections.ConfigDict:
  """Returns the resolved config of a `config.json`, also of earlier versions.

  Args:
    fields: Content of the file.
    where: Name of the file, for messages.

  Raises:
    UserError: If it is not a config, or not one that this version supports.
  """
  from gswinrmt_jax.models import factory

  sections = {path.partition('.')[0] for path in FIELDS if '.' in path}
  if not isinstance(fields, dict) or not all(
      isinstance(fields.get(name, {}), dict) for name in sections
  ):
    raise UserError(f'{where} is not the recipe of a run')
  for section, name in (('model', 'name'), ('data', 'name')):
    if not isinstance(fields.get(section, {}).get(name), str):
      raise UserError(
          f'{where} is not the recipe of a run: it names no {section}'
      )
  # JSON has no tuples, and a model with a list as a field is not hashable.
  fields = {**{name: {} for name in sections}, **_tuples(fields)}
  for path, declared in FIELDS.items():
    section, _, name = path.rpartition('.')
    group = fields[section] if section else fields
    group.setdefault(name, declared.default)
  for name in _RETIRED:
    fields.pop(name, None)
  for name in factory.RETIRED:
    fields['model'].pop(name, None)
  if fields['data']['storage'] in ('device', 'auto'):  # of earlier versions
    fields['data']['storage'] = 'memory'
  eps = fields['optimizer']['eps']
  if isinstance(eps, float) and eps == 0:  # as earlier versions allowed
    fields['optimizer']['eps'] = 1e-30
  try:
    return resolve(ml_collections.ConfigDict(fields))
  except UserError as error:
    raise UserError(f'{where}: {error}') from error
  except (ValueError, TypeError, AttributeError) as error:  # names of fields
    raise UserError(f'{where} is not the recipe of a run: {error}') from error


def _tuples(value):
  if isinstance(value, Mapping):
    return {name: _tuples(inner) for name, inner in value.items()}
  return tuple(map(_tuples, value)) if isinstance(value, list) else value
