"""Lists the equations and inner programs of a jaxpr."""

import collections
from collections.abc import Iterator

import jax.extend


def equations(
    jaxpr: jax.extend.core.Jaxpr,
) -> Iterator[jax.extend.core.JaxprEqn]:
  """Yields all equations, those of inner programs once per call."""
  for equation in jaxpr.eqns:
    yield equation
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from equations(inner)


def shared(jaxpr: jax.extend.core.Jaxpr) -> dict[str, tuple[int, int]]:
  """Returns, by name, the numbers of inner programs and of their calls."""
  called = collections.defaultdict(list)
  for equation in equations(jaxpr):
    if equation.primitive.name in ('jit', 'pjit'):
      called[equation.params['name']].append(id(equation.params['jaxpr']))
  return {name: (len({*ids}), len(ids)) for name, ids in called.items()}
