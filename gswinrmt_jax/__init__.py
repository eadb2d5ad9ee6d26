"""Gated-SwinRMT and RMT vision transformers in JAX.

    loaded = gswinrmt_jax.load_model('digits_small')
    print(loaded.predict('examples/images/digit_0.png'))

    model = gswinrmt_jax.create_model('retention_compact', num_classes=10)
    variables = gswinrmt_jax.init(model, jax.random.key(0), (32, 32))
    logits = model.apply(variables, images, train=False)

Each public function is imported on first use. Importing the package does not
load JAX, which keeps `gswinrmt --help` fast.
"""

import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
  from gswinrmt_jax.deploy.load import load_model
  from gswinrmt_jax.deploy.save import save_model
  from gswinrmt_jax.models.dense.detector import create_detector
  from gswinrmt_jax.models.dense.segmenter import create_segmenter
  from gswinrmt_jax.models.factory import create_model, init
  from gswinrmt_jax.models.nnx_bridge import to_nnx
  from gswinrmt_jax.weights.load import list_models

__version__ = '0.1.0'
__all__ = [
    'create_detector',
    'create_model',
    'create_segmenter',
    'init',
    'list_models',
    'load_model',
    'save_model',
    'to_nnx',
]

_MODULES = {
    'create_detector': 'models.dense.detector',
    'create_model': 'models.factory',
    'create_segmenter': 'models.dense.segmenter',
    'init': 'models.factory',
    'list_models': 'weights.load',
    'load_model': 'deploy.load',
    'save_model': 'deploy.save',
    'to_nnx': 'models.nnx_bridge',
}


def __getattr__(name: str) -> Any:
  """Imports a public function on first use."""
  if name in _MODULES:
    module = importlib.import_module(f'gswinrmt_jax.{_MODULES[name]}')
    return getattr(module, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  """Includes the public functions, for `dir()` and completion."""
  return sorted({*globals(), *__all__})
