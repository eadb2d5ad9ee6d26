"""Creates the named models, with any field changed."""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import numbers
from typing import Any

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.errors import did_you_mean
from gswinrmt_jax.models import architecture, backbone, named

DTYPES = ('float32', 'bfloat16')

# Fields of earlier versions that selected an implementation, without changing
# the model. Runs still contain them.
RETIRED = ('attention_impl', 'depthwise_impl', 'ffn_impl')

# Name and type of each field that `create_model` takes.
FIELDS: Mapping[str, type] = {
    field.name: type(field.default)
    for field in dataclasses.fields(architecture.Architecture)
}


def create_model(
    name: str,
    *,
    num_classes: int,
    dtype: Dtype = jnp.float32,
    remat: str = 'none',
    **overrides: Any,
) -> backbone.Backbone:
  """Returns one of the papers' models, with any field changed.

      model = create_model('retention_compact', num_classes=10)
      variables = init(model, jax.random.key(0), (32, 32))
      logits = model.apply(variables, images, train=False)

  Args:
    name: A name in `list_models()`.
    num_classes: Number of logits; 0 for a backbone without a head.
    dtype: Computation dtype. Parameters and statistics are float32, logits at
      least float32.
    remat: What the backward pass recomputes to save memory, see `Backbone`.
    **overrides: Fields of `architecture.Architecture`, such as `widths` or
      `window_size`.

  Raises:
    ValueError: If a name or field does not exist, or a value is invalid.
  """
  how = {'num_classes': num_classes, 'dtype': dtype, 'remat': remat}
  return backbone.Backbone(**_checked(name, **how, **overrides))


def _checked(name, *, num_classes, dtype, remat, **overrides):
  """Returns a model's attributes; arguments as in `create_model`."""
  if isinstance(dtype, str) and dtype not in DTYPES:
    raise ValueError(f'dtype={dtype!r} is not one of {DTYPES}.')
  found = None if dtype is None else jnp.dtype(dtype)  # NumPy's is float64.
  if found not in {jnp.dtype(each) for each in (*DTYPES, jnp.float64)}:
    raise ValueError(f'dtype={found} must be {", ".join(DTYPES)} or float64.')
  if remat not in backbone.REMAT:
    raise ValueError(f'{remat=} is not one of {tuple(backbone.REMAT)}.')
  num_classes = whole('num_classes', num_classes, least=0)
  if num_classes and overrides.get('feature_norm'):
    raise ValueError(
        'feature_norm=True is for backbones without a head: num_classes=0.'
    )
  return {
      'arch': architecture.Architecture(**resolve(name, overrides)),
      'num_classes': num_classes,
      'dtype': found,
      'remat': remat,
  }


def whole(name: str, value: Any, *, least: int) -> int:
  """Returns a value that must be a whole number; NumPy's are accepted.

  Raises:
    ValueError: If it is not, or less than `least`; the message names it.
  """
  if not isinstance(value, numbers.Integral) or value < least:
    raise ValueError(
        f'{name}={value!r} must be a whole number of at least {least}.'
    )
  return int(value)


def create_dense_backbone(
    name: str,
    *,
    dtype: Dtype,
    remat: str,
    of_head: Iterable[str],
    **overrides: Any,
) -> backbone.Backbone:
  """Returns a backbone for a dense head, by default with normalised maps.

  `of_head` has the names of the dense head's arguments, for messages. Other
  arguments and errors are those of `create_model`; fields of a classifier's
  head are refused, too.
  """
  for key in overrides:
    if key not in FIELDS and (near := did_you_mean(key, of_head)):
      raise ValueError(f'A model has no field {key!r}{near}')
  how = {'num_classes': 0, 'dtype': dtype, 'remat': remat}
  if overrides.get('feature_norm') is None:
    overrides['feature_norm'] = True
  # Without a parent, it is a submodule of the dense model, not of a module
  # whose method makes that.
  model = backbone.Backbone(**_checked(name, **how, **overrides), parent=None)
  for field in ('dense_head', 'projection'):
    if getattr(model.arch, field) != getattr(named.MODELS[name], field):
      raise ValueError(f'{field}={overrides[field]} is for classifiers.')
  return model


def init(
    model: nn.Module, key: jax.Array, image_size: tuple[int, int] = (32, 32)
) -> dict[str, Any]:
  """Returns freshly initialised variables, equal to `model.init`'s.

      variables = init(model, jax.random.key(0), (32, 32))

  The forward pass is not computed, and parameters are drawn one by one.
  `jax.jit(model.init)` takes several times as long, because it compiles a
  program with hundreds of random draws.

  Args:
    model: From `create_model`.
    key: Random key of the parameters, `jax.random.key(SEED)`.
    image_size: Height and width, in pixels, of images that the model must
      accept. They do not affect the variables.

  Returns:
    `{'params', 'batch_stats'}`, float32, for `model.apply`.

  Raises:
    ValueError: If the model does not accept images of this size.
  """
  if np.ndim(image_size) != 1:
    raise ValueError(f'{image_size=} must be a height and a width.')
  image = jax.ShapeDtypeStruct((1, *image_size, 3), jnp.float32)
  return model.lazy_init(key, image, train=False)


def describe(
    name: str, fields: Mapping[str, Any], parameters: int | None = None
) -> str:
  """Returns a model's name and its differences from the model of that name.

      rmt_t with depths 2 2 2 2, window_size 7, 10,282,248 parameters

  Args:
    name: A name in `named.MODELS`.
    fields: Fields of `architecture.Architecture`.
    parameters: Number of parameters; None omits it.
  """
  original, changed = resolve(name, {}), resolve(name, fields)
  changes = [
      f'{field} {_plain(value)}'
      for field, value in changed.items()
      if value != original[field]
  ]
  parts = [f'{name} with {", ".join(changes)}' if changes else name]
  if parameters is not None:
    parts.append(f'{parameters:,} parameters')
  return ', '.join(parts)


def _plain(value):
  return ' '.join(map(str, value)) if isinstance(value, tuple) else str(value)


@functools.cache
def variable_shapes(
    model: nn.Module, image_shape: tuple[int, int, int] | None = None
) -> dict[str, Any]:
  """Returns the shapes of a model's variables without allocating them.

  Args:
    model: Module that is called as `model(image, train=False)`.
    image_shape: Height, width and channels. They do not affect the variables,
      but a model may reject them. By default, those of its smallest image,
      which is the fastest.
  """
  image_shape = image_shape or (model.arch.stride, model.arch.stride, 3)
  return jax.eval_shape(
      functools.partial(model.init, train=False),
      jax.eval_shape(lambda: jax.random.key(0)),  # opens no device
      jax.ShapeDtypeStruct((1, *image_shape), jnp.float32),
  )


def resolve(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
  """Returns every field of the named model, with `overrides` applied.

  Args:
    name: A name in `named.MODELS`.
    overrides: Fields to change; None keeps the named model's value.

  Raises:
    ValueError: If the name or a field does not exist (the message suggests the
      closest), or a value has a wrong type.
  """
  table = named.MODELS
  if name not in table:
    near = did_you_mean(name, table) or _listed(table)
    raise ValueError(f'No model is called {name!r}{near}')
  fields = dataclasses.asdict(table[name])
  for key, value in overrides.items():
    if key == 'pretrained':  # timm's
      raise ValueError(
          f'create_model initialises {name} at random: load_model(SOURCE) '
          'loads trained weights, list_models(pretrained=True) names those '
          'that ship'
      )
    if key not in FIELDS:
      near = did_you_mean(key, FIELDS) or _listed(FIELDS)
      raise ValueError(f'A model has no field {key!r}{near}')
    if value is not None:
      fields[key] = _typed(key, value)
  return fields


def _listed(names):
  return f'; there are {", ".join(sorted(names))}.'


def _typed(key: str, value: Any) -> Any:
  """Converts `value` to the field's type; JSON and flags have fewer types."""
  default = getattr(architecture.Architecture, key)
  if isinstance(default, tuple):
    if not isinstance(value, (list, tuple)):
      raise ValueError(f'{key}={value!r} must be a tuple.')
    element = type(default[0]) if default else int
    return tuple(_number(key, entry, element) for entry in value)
  if isinstance(default, (bool, str)):
    if not isinstance(value, type(default)):
      raise ValueError(f'{key}={value!r} must be a {type(default).__name__}.')
    return value
  return _number(key, value, type(default))


def _number(key: str, value: Any, expected: type) -> int | float:
  """Converts an int where a float is expected; rejects any other mismatch."""
  allowed = numbers.Real if expected is float else numbers.Integral
  if isinstance(value, bool) or not isinstance(value, allowed):
    raise ValueError(f'{key} takes {expected.__name__}, not {value!r}.')
  return expected(value)
