"""Random draws of one shape in one operation."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core
import jax.numpy as jnp

_Equations = list[core.JaxprEqn]


def joined(traced: jax.stages.Traced) -> Callable[[], Any]:
  """Returns a function without arguments whose like draws are one draw.

  On a CPU each is a loop that XLA compiles by itself, for the parameters of a
  model longer than for its training step. A draw is any operation on a key of
  JAX's default generator; others draw otherwise under `vmap`. Draws that differ
  only in what they are given become one. Results are the same but for rounding;
  until they are cut apart they take their memory twice.

  Args:
    traced: The function, `jax.jit(function).trace()`.
  """
  program = traced.jaxpr
  variables = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
  structure = jax.tree.structure(traced.out_info)
  groups = _groups(_needed(program.jaxpr))

  def function():
    values = dict(variables)

    def read(atom):
      return atom.val if isinstance(atom, core.Literal) else values[atom]

    for group in groups:
      given = [[read(atom) for atom in eqn.invars] for eqn in group]
      call = _function(group[0], program.jaxpr)
      if len(group) == 1:
        results = [call(*given[0])]
      else:
        stacked = [jnp.stack(each) for each in zip(*given, strict=True)]
        results = zip(*jax.vmap(call)(*stacked), strict=True)
      for eqn, of_one in zip(group, results, strict=True):
        values.update(zip(eqn.outvars, of_one, strict=True))
    return structure.unflatten(map(read, program.jaxpr.outvars))

  return function


def _needed(jaxpr: core.Jaxpr) -> _Equations:
  """Returns the equations that the results depend on, in their order."""
  needed, equations = set(_variables(jaxpr.outvars)), []
  for eqn in reversed(jaxpr.eqns):
    if not needed.isdisjoint(eqn.outvars):
      equations.append(eqn)
      needed.update(_variables(eqn.invars))
  return equations[::-1]


def _groups(equations: _Equations) -> list[_Equations]:
  """Returns equations to be made one, each behind those that it reads.

  They are ordered by how many draws lie before them in a row: draws behind as
  many do not depend on each other.
  """
  behind = collections.Counter()  # how many draws, by variable
  others, draws = collections.defaultdict(list), collections.defaultdict(dict)
  for eqn in equations:
    count = max((behind[of] for of in _variables(eqn.invars)), default=0)
    if _is_draw(eqn):
      draws[count].setdefault(_kind(eqn), []).append(eqn)
    else:
      others[count].append([eqn])
    behind.update(dict.fromkeys(eqn.outvars, count + _is_draw(eqn)))
  return [
      group
      for count in range(max(behind.values(), default=0) + 1)
      for group in [*others[count], *draws[count].values()]
  ]


def _function(
    eqn: core.JaxprEqn, jaxpr: core.Jaxpr
) -> Callable[..., Sequence[Any]]:
  """Returns the operation of an equation of `jaxpr`, whatever it reads."""
  given, results = (
      [core.Var(atom.aval) for atom in atoms]
      for atoms in (eqn.invars, eqn.outvars)
  )
  alone = jaxpr.replace(
      constvars=[],
      invars=given,
      outvars=results,
      eqns=[eqn.replace(invars=given, outvars=results)],
      debug_info=jaxpr.debug_info.with_unknown_names(),
  )
  return core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))


def _variables(atoms):
  return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _is_draw(eqn):
  return any(str(atom.aval.dtype) == 'key<fry>' for atom in eqn.invars)


def _kind(eqn):
  """Returns what is the same for operations that can be made one."""
  # A program by its identity: JAX traces those of one shape once.
  params = [
      (name, id(of) if isinstance(of, core.ClosedJaxpr) else repr(of))
      for name, of in sorted(eqn.params.items())
  ]
  return eqn.primitive, *(str(atom.aval) for atom in eqn.invars), *params
