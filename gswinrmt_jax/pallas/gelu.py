"""GELU and its derivative inside of a kernel, where there is no `erf`."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

# erf(x) = 1 - (a_1 t + .. + a_5 t^5) exp(-x^2), t = 1 / (1 + p x), for x >= 0,
# to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
_P = 0.3275911
_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def gelu_and_slope(
    x: Float[Array, '*b'],
) -> tuple[Float[Array, '*b'], Float[Array, '*b']]:
  """Returns `x Phi(x)` and `Phi(x) + x phi(x)`, by one exponential.

  With the normal distribution's Phi and its density phi, as `ops.gelu` has
  them, to the seventh decimal.
  """
  exponential = jnp.exp(-0.5 * x * x)
  t = 1 / (1 + _P * math.sqrt(0.5) * jnp.abs(x))
  tail = jnp.zeros_like(x)
  for factor in reversed(_A):
    tail = (tail + factor) * t
  tail *= 0.5 * exponential  # Phi(-|x|)
  phi = jnp.where(x < 0, tail, 1 - tail)
  return x * phi, phi + x * exponential / math.sqrt(2 * math.pi)
