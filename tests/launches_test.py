"""What a GPU computes together: numbers stay, and the groups are apart."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest

from gswinrmt_jax.models import block, named
from gswinrmt_jax.ops import backend, launches
from gswinrmt_jax.train import optimizer

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
  expected = jax.grad(lambda x: jnp.sin(x[1]).sum())(jnp.asarray(X))
  np.testing.assert_allclose(expected[1], np.cos(X[1]), rtol=1e-6)
  np.testing.assert_array_equal(there, expected)


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


def test_what_a_block_has_computed_with_others():
  """Each is a launch less for every block; with the optimiser's, one a leaf."""
  arch = dataclasses.replace(
      named.MODELS['retention_compact'],
      widths=(8,) * 4,
      num_heads=(2,) * 4,
      mlp_ratios=(2.0,) * 4,
  )
  module = block.Block(arch, 0, False, jnp.bfloat16)
  x = jnp.ones((2, 8, 8, 8), jnp.bfloat16)
  params = jax.eval_shape(module.init, jax.random.key(0), x, None)['params']
  tx = optimizer.make_optimizer(
      lambda step: 0.1, b1=0.9, b2=0.9, eps=1e-8, weight_decay=0.1
  )

  def train(params, x, state):
    def loss(params):
      return module.apply({'params': params}, x, None).sum()

    return tx.update(jax.grad(loss)(params), state, params)

  with backend.tracing_for('gpu'):
    program = jax.make_jaxpr(train)(params, x, jax.eval_shape(tx.init, params))
  found = collections.Counter(_lengths(program.jaxpr))
  groups = {among: found[length] for among, length in launches._LENGTHS.items()}
  assert groups.pop('updates') == len(jax.tree.leaves(params))
  assert groups == {
      # Kernel and bias of both layers that LayerScale follows, and of both that
      # a norm precedes; one bias in front of a layer; log decay, and distances.
      'forward': 2 * 2 + 2 * 2 + 1 + 1 + 2,
      # Kernels and biases of four projections; kernel, bias and LayerScale,
      # twice, of both; the kernel's and the bias's part of five products.
      'gradients': 4 * 2 + 2 * 4 + 5 * 2,
      'sums': 2,  # for the norm inside the FFN
  }


def _lengths(jaxpr):
  """Of the vectors behind barriers, also in programs within."""
  for equation in programs.equations(jaxpr):
    if equation.primitive.name == 'optimization_barrier':
      shape = equation.outvars[0].aval.shape
      if len(equation.outvars) == len(shape) == 1:
        yield shape[0]
