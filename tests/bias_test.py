"""Adding a bias, and the sum that is its gradient."""

import jax
from jax import test_util
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops

X = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
BIAS = np.array([-1.0, 0.5, 0.0, 2.0])


def test_values_and_gradients():
  with jax.enable_x64(True):
    np.testing.assert_array_equal(
        ops.add_bias(jnp.asarray(X), jnp.asarray(BIAS)), X + BIAS
    )
    test_util.check_grads(
        lambda *arrays: jnp.sin(ops.add_bias(*map(jnp.asarray, arrays))),
        (X, BIAS),
        1,
        modes=['rev'],
    )


@pytest.mark.parametrize(
    ('function', 'slope'), [(ops.add_bias, 1.0), (ops.biased_gelu, 1.083315)]
)
def test_the_sum_over_many_tokens_does_not_stop_growing(function, slope):
  """In bfloat16 it would end at 1,024 or 2,048."""
  x, bias = jnp.ones((8, 56, 56, 4), jnp.bfloat16), jnp.zeros(4)
  y, pull = jax.vjp(function, x, bias)
  dx, dbias = pull(jnp.ones_like(y))
  assert (y.dtype, dx.dtype, dbias.dtype) == ('bfloat16', 'bfloat16', 'float32')
  np.testing.assert_allclose(dbias, slope * 8 * 56 * 56, rtol=4e-3)
