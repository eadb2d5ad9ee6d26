"""Kernels of convolutions as parameters."""

import jax
from jax import lax
from jaxtyping import Array, Float

from gswinrmt_jax.ops.launches import in_one_launch


@jax.custom_vjp
def with_gradient_in_order(
    kernel: Float[Array, '*k'],
) -> Float[Array, '*k']:
  """Returns the kernel; its gradient will lie in memory as the kernel does.

  cuDNN's order is another, and XLA would update the parameter and both moments
  of the optimiser in it: three copies instead of one.
  """
  return kernel


def _forward(kernel):
  return kernel, None


def _backward(residuals, cotangent):
  del residuals
  flat = in_one_launch(cotangent.ravel(), 'gradients')
  flat = lax.optimization_barrier(flat)
  return (flat.reshape(cotangent.shape),)


with_gradient_in_order.defvjp(_forward, _backward)
