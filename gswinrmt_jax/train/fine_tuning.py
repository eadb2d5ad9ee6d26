"""Starting a run from the weights of another model."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from flax import traverse_util
import jax.numpy as jnp

from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.train import layerwise
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train.train_state import TrainState
from gswinrmt_jax.weights.load import Weights

_SHOWN = 8  # most names that a report lists
_BACKBONE = 'backbone'  # the submodule of a segmenter or detector


def check(
    target: Mapping[str, Any],
    source: Weights,
    freeze: str = '',
    freeze_statistics: bool = False,
) -> None:
  """Refuses weights of another model, judging by shapes alone.

  Args:
    target: Shapes of the model's variables.
    source: The weights to start from.
    freeze: As `config.optimizer.freeze`.
    freeze_statistics: As `config.optimizer.freeze_statistics`.

  Raises:
    UserError: If, apart from the heads, the source has arrays for less than
      half of the elements of the target, or if it lacks one that is frozen.
  """
  new, old = _flat(target), _flat(_placed(source.variables, target))
  fresh = _fresh(new, old)
  body = {
      name: array.size
      for name, array in new.items()
      if layerwise.in_backbone(_path(name))
  }
  share = sum(body[n] for n in body if n not in fresh) / sum(body.values())
  if share < 0.5:
    first = next(name for name in fresh if name in body)
    raise UserError(
        f'config.init_from: {source.origin} is for another model: only '
        f'{share:.0%} of the values fit; {first} {fresh[first]}'
    )
  for name, why in fresh.items():
    path = _path(name)
    if layerwise.is_frozen(path, freeze):
      field = f"freeze is '{freeze}'"
    elif (
        freeze_statistics
        and name.startswith('batch_stats/')
        and layerwise.in_backbone(path)
    ):
      field = 'freeze_statistics is True'
    else:
      continue
    raise UserError(
        f'config.optimizer.{field}, but {name} {why}: random values would be '
        'frozen'
    )


def of_other_classes(source: Weights, info: datasets.Info) -> dict[str, str]:
  """Returns the arrays that depend on classes, and why they are not copied.

  Empty if the classes are equal, if the weights have no names of classes, or if
  the numbers differ, which shapes show.
  """
  card, count = source.card, len(info.class_names)
  if source.task != info.task or card.num_classes != count:
    return {}
  differing = source.first_other_class(info)
  if not differing:
    return {}
  _, mine, other = differing
  # With a class more, these arrays have another shape.
  more = dataclasses.replace(card, num_classes=count + 1, class_names=())
  shapes = _flat(factory.variable_shapes(more.make_model()))
  return {
      name: f"is of other classes: '{mine}' is '{other}' here"
      for name, array in _flat(source.variables).items()
      if array.shape != shapes[name].shape
  }


def transfer(
    initial: Mapping[str, Any],
    source: Mapping[str, Any],
    other: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], list[str]]:
  """Copies every array of the source that the model has in the same shape.

  The image size may differ, since no array depends on it. A head for another
  number of classes keeps its initial values. A segmenter or detector
  initialises its backbone from a classifier or from a backbone alone, and a
  classifier is initialised from the backbone of a segmenter or detector.

  Args:
    initial: Freshly initialised variables of the model.
    source: Variables of another model of the family.
    other: Arrays of the source that are not copied, and why.

  Returns:
    The variables to start from, and a report as a list of lines.
  """
  new, old = _flat(initial), _flat(_placed(source, initial))
  fresh = _fresh(new, old)
  fresh |= {name: why for name, why in (other or {}).items() if name in new}
  merged = {
      name: array if name in fresh else jnp.asarray(old[name], array.dtype)
      for name, array in new.items()
  }
  report = [f'loaded: {len(new) - len(fresh)} arrays']
  lines = [
      f'randomly initialised: {name} ({why})' for name, why in fresh.items()
  ]
  report += lines[:_SHOWN]
  if lines[_SHOWN:]:
    report.append(f'randomly initialised: {len(lines) - _SHOWN} more arrays')
  unused = [name for name in old if name not in new]
  if unused:
    more = f' and {len(unused) - _SHOWN} more' if unused[_SHOWN:] else ''
    report.append(f'not used: {", ".join(unused[:_SHOWN])}{more}')
  return traverse_util.unflatten_dict(merged, sep='/'), report


def start(
    state: TrainState,
    source: Weights,
    info: datasets.Info,
    say: Callable[[str], None],
) -> TrainState:
  """Copies the weights that fit into a new state, and prints a report.

  The head for other classes than those of the data keeps its initial values.
  The EMA restarts at the copied weights.
  """
  other = of_other_classes(source, info)
  variables, report = transfer(state.variables, source.variables, other)
  say(f'Starting from {source.origin}:')
  for line in report:
    say(f'  {line}')
  state = state.replace(**variables)
  return state if state.ema is None else state_lib.restart_ema(state)


def _placed(source, target):
  """Nests a source as the backbone of a dense model, or takes it from there."""
  nested = _BACKBONE in source['params']
  if nested == (_BACKBONE in target['params']):
    return source
  if not nested:
    return {kind: {_BACKBONE: tree} for kind, tree in source.items()}
  # The rest keeps its names, to be reported as not used.
  return {
      kind: {k: v for k, v in tree.items() if k != _BACKBONE}
      | dict(tree.get(_BACKBONE, {}))
      for kind, tree in source.items()
  }


def _path(name):
  """Returns the path of an array in the model, such as ('stem', 'norm0')."""
  return tuple(name.split('/')[1:])


def _flat(variables):
  return traverse_util.flatten_dict(dict(variables), sep='/')


def _fresh(new, old):
  """Returns the arrays that the source cannot provide, and why."""
  fresh = {}
  for name, array in new.items():
    if name not in old:
      fresh[name] = 'is not in the weights'
    elif old[name].shape != array.shape:
      fresh[name] = f'is {old[name].shape} in the weights, {array.shape} here'
  return fresh
