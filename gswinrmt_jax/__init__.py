"""Gated-SwinRMT and RMT vision transformers in JAX."""

import importlib
import typing

if typing.TYPE_CHECKING:
  from gswinrmt_jax.models.factory import create_model
  from gswinrmt_jax.weights.load import load_model

__version__ = '0.1.0'
__all__ = ['create_model', 'load_model']

_WHERE = {'create_model': 'models.factory', 'load_model': 'training.weights'}


def __getattr__(name: str) -> typing.Any:
  """Loads JAX with the first use, not with the package: help is at once."""
  if name in _WHERE:
    module = importlib.import_module(f'gswinrmt_jax.{_WHERE[name]}')
    return getattr(module, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
