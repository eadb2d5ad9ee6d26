"""Softmax and sigmoid that keep what they return."""

import jax
from jax import test_util
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import score_fn

SCORES = np.random.default_rng(0).normal(size=(2, 3, 4, 5)) * 3
FORMS = [(score_fn.softmax, jax.nn.softmax), (score_fn.sigmoid, jax.nn.sigmoid)]


@pytest.mark.parametrize(('form', 'expected'), FORMS)
def test_values_and_gradients(form, expected):
  with jax.enable_x64(True):
    scores = jnp.asarray(SCORES)

    def weights(scores):
      return form(jnp.asarray(scores), jnp.float64)

    np.testing.assert_allclose(weights(scores), expected(scores), rtol=1e-12)
    test_util.check_grads(weights, (scores,), 1, modes=['fwd', 'rev'])
    test_util.check_grads(weights, (scores,), 2, modes=['rev'], rtol=1e-4)


@pytest.mark.parametrize(('form', 'expected'), FORMS)
def test_narrow_values_have_a_narrow_gradient(form, expected):
  """Computed in float32, from weights and cotangents that are bfloat16."""
  scores = jnp.float32(SCORES)
  weights, pull = jax.vjp(lambda s: form(s, jnp.bfloat16), scores)
  dtype = jnp.bfloat16 if form is score_fn.softmax else jnp.float32
  assert weights.dtype == dtype
  np.testing.assert_array_equal(weights, expected(scores).astype(dtype))
  cotangent = jnp.asarray(np.arange(120.0).reshape(2, 3, 4, 5), dtype)
  (gradient,) = pull(cotangent)
  assert gradient.dtype == jnp.float32
  np.testing.assert_array_equal(gradient, gradient.astype(jnp.bfloat16))
  wide = jax.vjp(expected, scores)[1](cotangent.astype(jnp.float32))[0]
  np.testing.assert_allclose(gradient, wide, atol=0.02 * np.abs(wide).max())


def test_a_sigmoid_that_is_almost_one_keeps_its_slope():
  scores = jnp.array([-8.0, 4.0, 6.0, 6.5, 8.0, 12.0])
  weights, pull = jax.vjp(lambda s: score_fn.sigmoid(s, jnp.bfloat16), scores)
  (slope,) = pull(jnp.ones_like(weights))
  exact = 1 / (2 + 2 * np.cosh(np.float64(scores)))
  np.testing.assert_allclose(slope, exact, rtol=4e-3)


def test_a_row_of_masked_scores_stays_finite():
  masked = jnp.full((1, 4), -1e30)
  np.testing.assert_array_equal(
      score_fn.softmax(masked, jnp.float32), jnp.full((1, 4), 0.25)
  )
