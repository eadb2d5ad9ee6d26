"""The length of a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.train import gradients


@pytest.mark.parametrize('small', [0, 3, 6, 100])
def test_norm_is_over_all_arrays(small, monkeypatch):
  """With all arrays, some or none of them joined: sqrt(1 + 4 ... + 100)."""
  monkeypatch.setattr(gradients, 'SMALL', small)
  numbers = jnp.arange(1.0, 11.0)
  tree = {'a': numbers[:1], 'b': {'c': numbers[1:7].reshape(2, 3)}}
  tree['d'] = numbers[7:8]  # of the shape of 'a'
  tree['e'] = numbers[8:]
  actual = jax.jit(gradients.norm)(tree)
  np.testing.assert_allclose(actual, np.sqrt(385.0), rtol=1e-6)
