"""Gated-SwinRMT and RMT vision transformers in JAX."""

import typing

if typing.TYPE_CHECKING:
  from gswinrmt_jax.models.factory import create_model

__version__ = '0.1.0'
__all__ = ['create_model']


def __getattr__(name: str) -> typing.Any:
  """Loads JAX with the first use, not with the package: help is at once."""
  if name == 'create_model':
    from gswinrmt_jax.models import factory

    return factory.create_model
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
