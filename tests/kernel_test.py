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


def test_the_gradient_is_complete_in_its_own_order():
  """Flat behind a barrier: nothing behind it takes another order on."""
  same = kernel.with_gradient_in_order
  text = str(
      jax.make_jaxpr(jax.grad(lambda x: same(x).sum()))(jnp.ones((3, 2)))
  )
  assert 'f32[6] = optimization_barrier' in text, text
