"""The parameter of a convolution whose gradient lies as it does."""

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.ops import kernel


def test_it_changes_neither_value_nor_gradient():
  values = jnp.arange(18.0).reshape(3, 3, 1, 2)

  def loss(function):
    return lambda x: (jnp.sin(function(x)) * values).sum()

  same = kernel.with_gradient_in_order
  np.testing.assert_array_equal(same(values), values)
  np.testing.assert_array_equal(
      jax.grad(loss(same))(values), jax.grad(loss(lambda x: x))(values)
  )
