"""Checks that a new run reads every field that its user changed."""

from typing import NoReturn

import ml_collections

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.recipes.fields import FIELDS, MODEL
from gswinrmt_jax.recipes.resolved import model_fields, resolve


def check_used(
    config: ml_collections.ConfigDict, recipe: ml_collections.ConfigDict
) -> None:
  """Refuses changes to fields that nothing would read.

  For new runs: earlier versions accepted such fields, and a run that has one in
  its config must remain usable.

  Args:
    config: The config to train with.
    recipe: The recipe from which it was changed. Values that the recipe itself
      reads may stay, such as the details of an augmentation that the config
      turns off.

  Raises:
    UserError: If a field has neither its default nor a value that the recipe
      reads, and its condition does not hold; also as in `resolve`.
  """
  resolved = resolve(config)
  # The recipe's other fields may be valid only with the changes.
  own = ml_collections.ConfigDict({'model': model_fields(recipe)})
  named = factory.resolve(config.model.name, {})
  for path, field in FIELDS.items():
    needs = field.unread(resolved)
    off = field.default if field.off is None else field.off
    allowed = [field.default, off]
    if not field.unread(recipe):
      allowed.append(recipe[path])
    if needs and config[path] not in allowed:
      _refuse(path, config[path], needs, off)
  for path, when in MODEL.items():
    value, default = config[path], named[path.removeprefix('model.')]
    if value in (None, default) or when.holds(resolved):
      continue
    if value != recipe[path] or not when.holds(own):
      _refuse(path, value, when.needs, default)


def _refuse(path, value, needs, instead) -> NoReturn:
  remedy = '' if instead is None else f'; without it, leave it at {instead!r}'
  raise UserError(
      f'config.{path} is {value!r} but has no effect: it needs '
      f'config.{needs}{remedy}'
  )
