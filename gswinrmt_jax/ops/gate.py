"""The gate's sigmoid."""

import jax
from jax import lax
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import is_large


def sigmoid_gate(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """Sigmoid, in the dtype of `x`.

  Of a large map nothing else is kept, `dx = dy y (1 - y)`, and it is written
  where `x` is computed, so that `x` is not: what the gate multiplies then reads
  an array.
  """
  return _written_sigmoid(x) if is_large(x) else jax.nn.sigmoid(x)


@jax.custom_vjp
def _written_sigmoid(x):
  return _forward(x)[0]


def _forward(x):
  y = lax.optimization_barrier(jax.nn.sigmoid(x))
  return y, y


def _backward(y, dy):
  return (dy * y * (1 - y),)


_written_sigmoid.defvjp(_forward, _backward)
