"""Lists models by name, and finds the weights that ship with the package.

pretrained/NAME/model.safetensors   parameters in half precision
pretrained/NAME/config.json         their card
pretrained/NAME/README.md           training data, accuracy, licence
"""

import fnmatch
import pathlib

import gswinrmt_jax

_FOLDER = pathlib.Path(gswinrmt_jax.__file__).parent / 'pretrained'


def list_models(pattern: str = '*', *, pretrained: bool = False) -> list[str]:
  """Returns the names of models, sorted.

      list_models('rmt_*')
      list_models(pretrained=True)

  Args:
    pattern: Shell-style pattern of names.
    pretrained: False lists architectures, for `create_model`; True lists
      trained models whose weights ship with the package, for `load_model`.
  """
  if pretrained:
    names = [path.parent.name for path in _FOLDER.glob('*/config.json')]
  else:
    from gswinrmt_jax.models import named

    names = list(named.MODELS)
  return sorted(fnmatch.filter(names, pattern))


def folder(name: str) -> pathlib.Path | None:
  """Returns the folder of weights that ship with the package, None if unknown.

  Args:
    name: A name in `list_models(pretrained=True)`.
  """
  return _FOLDER / name if name in list_models(pretrained=True) else None
