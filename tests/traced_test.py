"""One program for all calls that would trace to the same one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import backend, traced

X = np.float32([1.0, 2.0])


@pytest.fixture(name='equation')
def _equation():
  """Returns a function, and the list of what it was traced for."""
  seen = []

  @traced.traced_once('factor')
  def scaled(x, shift=None, *, factor=2):
    """Returns `factor x + shift`."""
    seen.append((x.shape, shift is None, factor, backend.platform()))
    y = factor * x
    return y if shift is None else y + shift

  return scaled, seen


def test_all_calls_of_a_shape_share_a_program(equation):
  scaled, seen = equation

  def loss(x):
    return jnp.sin(scaled(x) + scaled(3 * x)).sum()

  gradient = jax.grad(loss)(X)
  np.testing.assert_allclose(gradient, 8 * np.cos(8 * X), rtol=1e-6)
  assert seen == [((2,), True, 2, 'cpu')]


def test_what_makes_another_program_is_traced_again(equation):
  scaled, seen = equation
  np.testing.assert_array_equal(scaled(X), 2 * X)
  np.testing.assert_array_equal(scaled(X[:1]), 2 * X[:1])
  np.testing.assert_array_equal(scaled(X, factor=3), 3 * X)
  np.testing.assert_array_equal(scaled(X, X, factor=3), 4 * X)
  assert seen == [
      ((2,), True, 2, 'cpu'),
      ((1,), True, 2, 'cpu'),
      ((2,), True, 3, 'cpu'),
      ((2,), False, 3, 'cpu'),
  ]


def test_each_kind_of_device_has_a_program_of_its_own(equation):
  scaled, seen = equation
  for platform in ('cpu', 'gpu', 'cpu', 'gpu'):
    with backend.tracing_for(platform):
      scaled(X)
  assert [each[-1] for each in seen] == ['cpu', 'gpu']


def test_another_dtype_is_another_program(equation):
  scaled, seen = equation
  assert scaled(jnp.asarray(X, jnp.bfloat16)).dtype == jnp.bfloat16
  assert scaled(X).dtype == jnp.float32
  with jax.enable_x64(True):
    assert scaled(np.float64(X)).dtype == np.float64
    np.testing.assert_array_equal(scaled(X + 1e-9), 2 * (X + 1e-9))
  assert len(seen) == 4


def test_a_static_argument_is_given_by_name():
  for name in ('x', 'factr'):
    with pytest.raises(TypeError, match=f"'{name}' is no keyword-only .* of f"):

      @traced.traced_once('factor', name)
      def f(x, *, factor):
        return factor * x


def test_it_keeps_its_name(equation):
  scaled, _ = equation
  assert scaled.__doc__ == 'Returns `factor x + shift`.'
  assert 'name=scaled' in str(jax.make_jaxpr(lambda x: scaled(x))(X))
