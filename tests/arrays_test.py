"""What several equations do to their arrays."""

import jax.numpy as jnp
import pytest

from gswinrmt_jax.ops import arrays


@pytest.mark.parametrize(
    ('dtype', 'wide'), [('bfloat16', 'float32'), ('float32', 'float32')]
)
def test_narrow_arrays_become_float32(dtype, wide):
  assert arrays.wide(jnp.ones(3, dtype)).dtype == wide


def test_a_vector_lies_along_the_last_axis():
  x, vector = jnp.zeros((2, 3, 3)), jnp.arange(3.0)
  assert ((x + arrays.along_channels(vector, x))[1, 2] == vector).all()
