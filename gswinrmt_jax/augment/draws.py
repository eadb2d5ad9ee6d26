"""Turning uniform draws into others.

One call of the generator per stage draws all the numbers that its images need:
each call is a piece of program of its own, and compiling those took half of the
time to the first batch.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32


def integer(
    uniform: Float32[Array, '*shape'], count: int | Int32[Array, '*shape']
) -> Int32[Array, '*shape']:
  """Maps [0, 1) to the integers 0 to `count - 1`, all equally likely.

  Args:
    uniform: Draws from [0, 1).
    count: Number of integers, the same for all or one for each.

  Returns:
    The floor of `uniform * count`.
  """
  return jnp.floor(uniform * count).astype(jnp.int32)


def normal(uniform: Float32[Array, '*shape']) -> Float32[Array, '*shape']:
  """Maps [0, 1) to the standard normal distribution by its quantile function.

  Args:
    uniform: Draws from [0, 1), multiples of 2^-23.

  Returns:
    Normal draws, within 5.3 of 0; symmetric: the middle of each step counts.
  """
  centred = 2 * (uniform + 2.0**-24) - 1
  return math.sqrt(2) * jax.lax.erf_inv(centred)
