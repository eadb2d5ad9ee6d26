"""Starting a run from weights that another model was trained to."""

from collections.abc import Callable, Mapping
import dataclasses
import pathlib
from typing import Any

from flax import traverse_util
import jax.numpy as jnp
import ml_collections

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train.train_state import TrainState
from gswinrmt_jax.weights import load as weights
from gswinrmt_jax.weights.load import Weights

_SHOWN = 8  # names in a line
_HEADS = ('params/head/', 'params/dense_head/')


@dataclasses.dataclass(frozen=True)
class Transfer:
  """What was taken over; names are paths, 'params/head/kernel'.

  Attributes:
    variables: Those to start from.
    taken: Arrays from the source.
    fresh: Arrays that keep their initial value, with the reason.
    unused: Arrays of the source that the model does not have.
  """

  variables: dict[str, Any]
  taken: list[str]
  fresh: dict[str, str]
  unused: list[str]

  def lines(self) -> list[str]:
    """Returns the report, for the terminal."""
    lines = [f'taken over: {len(self.taken)} arrays']
    for name, why in self.fresh.items():
      lines.append(f'starts afresh: {name} ({why})')
    if self.unused:
      names = ', '.join(self.unused[:_SHOWN])
      more = f' and {len(self.unused) - _SHOWN} more'
      names += more if len(self.unused) > _SHOWN else ''
      lines.append(f'not used: {names}')
    return lines


def load(
    config: ml_collections.ConfigDict, warn: Callable[[str], None]
) -> Weights | None:
  """Returns the weights that a recipe starts from, None if it has none."""
  if not config.init_from:
    return None
  return weights.load(pathlib.Path(config.init_from), warn=warn)


def check(target: Mapping[str, Any], source: Weights) -> None:
  """Refuses weights of another model, by shapes alone.

  Args:
    target: Shapes of the model's variables.
    source: Weights to start from.

  Raises:
    UserError: If, beside the heads, less than half of the model's numbers are
      in the source.
  """
  new, old = _flat(target), _flat(source.variables)
  fresh = _fresh(new, old)
  body = {n: a.size for n, a in new.items() if not n.startswith(_HEADS)}
  share = sum(body[n] for n in body if n not in fresh) / sum(body.values())
  if share < 0.5:
    first = next(name for name in fresh if name in body)
    raise UserError(
        f'config.init_from: {source.origin} is for another model: only '
        f'{share:.0%} of the numbers fit; {first} {fresh[first]}'
    )


def transfer(initial: Mapping[str, Any], source: Mapping[str, Any]) -> Transfer:
  """Takes over every array of the source that the model has in that shape.

  The image size does not matter, since no array depends on it; a head for
  another number of classes keeps its initial value.

  Args:
    initial: Freshly initialised variables of the model.
    source: Variables of another model of the family.
  """
  new, old = _flat(initial), _flat(source)
  fresh = _fresh(new, old)
  merged = {
      name: array if name in fresh else jnp.asarray(old[name], array.dtype)
      for name, array in new.items()
  }
  return Transfer(
      variables=traverse_util.unflatten_dict(merged, sep='/'),
      taken=[name for name in new if name not in fresh],
      fresh=fresh,
      unused=[name for name in old if name not in new],
  )


def start(
    state: TrainState, source: Weights, say: Callable[[str], None]
) -> TrainState:
  """Takes over what fits of other weights; the optimizer starts afresh.

  Args:
    state: Freshly initialised; its average begins at what was taken over.
    source: Weights to start from.
    say: Told the report, line by line.
  """
  moved = transfer(state.variables, source.variables)
  say(f'Starting from {source.origin}:')
  for line in moved.lines():
    say(f'  {line}')
  state = state.replace(**moved.variables)
  return state if state.ema is None else state_lib.restart_ema(state)


def _flat(variables):
  return traverse_util.flatten_dict(dict(variables), sep='/')


def _fresh(new, old):
  """Returns what the source has not, or not in that shape, and why."""
  fresh = {}
  for name, array in new.items():
    if name not in old:
      fresh[name] = 'not in the weights'
    elif old[name].shape != array.shape:
      fresh[name] = f'is {old[name].shape} in the weights, {array.shape} here'
  return fresh
