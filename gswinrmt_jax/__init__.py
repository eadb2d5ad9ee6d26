"""Gated-SwinRMT and RMT vision transformers in JAX.

    model = gswinrmt_jax.create_model('retention_compact', num_classes=10)
    model, variables = gswinrmt_jax.load_model('runs/cifar10_retention')

Importing the package loads no JAX, so that `gswinrmt --help` is quick: the two
functions are imported when they are first used.
"""

import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
  from gswinrmt_jax.models.factory import create_model
  from gswinrmt_jax.weights.load import load_model

__version__ = '0.1.0'
__all__ = ['create_model', 'load_model']

_MODULES = {'create_model': 'models.factory', 'load_model': 'weights.load'}


def __getattr__(name: str) -> Any:
  """Imports a public function at its first use."""
  if name in _MODULES:
    module = importlib.import_module(f'gswinrmt_jax.{_MODULES[name]}')
    return getattr(module, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  """Lists the public functions, too, for `dir()` and completion."""
  return sorted({*globals(), *__all__})
