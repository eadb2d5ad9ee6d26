"""Integers and normal numbers from uniform ones.

Each stage of the augmentation calls the generator once for all its images:
every call is a piece of program of its own, and compiling one call per number
took half of the time to the first batch.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32


def integer(
    uniform: Float32[Array, '*shape'], count: int | Int32[Array, '*shape']
) -> Int32[Array, '*shape']:
  """Maps [0, 1) to the integers 0 to `count - 1`, all equally likely."""
  return jnp.floor(uniform * count).astype(jnp.int32)


def normal(uniform: Float32[Array, '*shape']) -> Float32[Array, '*shape']:
  """Maps [0, 1) to the standard normal distribution by its quantile function.

  Args:
    uniform: Draws from [0, 1), multiples of 2^-23.

  Returns:
    Normal draws, within 5.3 of 0; symmetric, since each draw counts as the
    middle of its step.
  """
  centred = 2 * (uniform + 2.0**-24) - 1
  return math.sqrt(2) * jax.lax.erf_inv(centred)
