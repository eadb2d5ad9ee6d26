"""What a GPU computes together: numbers stay, and the groups are apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import backend, launches

X = np.float32([[1.0, -2.0, np.inf], [3e-38, -0.5, 7.0]])


def _barriers(function):
  """Shapes behind the barriers of the program for a GPU, and for a CPU."""
  shapes = []
  for platform in ('gpu', 'cpu'):
    with backend.tracing_for(platform):
      program = jax.make_jaxpr(lambda x: function(x))(X)
    shapes.append(
        [
            equation.outvars[0].aval.shape
            for equation in program.eqns
            if equation.primitive.name == 'optimization_barrier'
        ]
    )
  return shapes


def test_numbers_stay():
  with backend.tracing_for('gpu'):
    np.testing.assert_array_equal(launches.in_one_launch(X, 'sums'), X)
    np.testing.assert_array_equal(launches.gradient_in_one_launch(X), X)
    np.testing.assert_array_equal(launches.complete({'x': X})['x'], X)


def test_gradients_stay():
  def loss(x):
    x = launches.in_one_launch(launches.gradient_in_one_launch(x), 'forward')
    return jnp.sin(x[1]).sum()

  with backend.tracing_for('gpu'):
    there = jax.grad(lambda x: loss(x))(jnp.asarray(X))
  np.testing.assert_array_equal(there[1], np.cos(X[1], dtype=np.float32))
  assert not there[0].any()


@pytest.mark.parametrize('among', ['forward', 'gradients', 'sums', 'updates'])
def test_each_group_has_an_array_of_its_own(among):
  """Of more than one number, and of other lengths than the others'."""
  others = {'forward', 'gradients', 'sums', 'updates'} - {among}
  own, none = _barriers(lambda x: launches.in_one_launch(x, among))
  assert own == [(launches._LENGTHS[among],)] and own[0] > (1,)
  assert none == []
  for other in others:
    assert _barriers(lambda x, o=other: launches.in_one_launch(x, o))[0] != own


def test_a_gradient_is_among_gradients():
  def gradient(x):
    return jax.grad(lambda x: launches.gradient_in_one_launch(x).sum())(x)

  assert _barriers(gradient) == [[(launches._LENGTHS['gradients'],)], []]


def test_on_a_gpu_a_tree_is_complete_at_once():
  assert _barriers(lambda x: launches.complete([x, x])) == [[X.shape], []]
