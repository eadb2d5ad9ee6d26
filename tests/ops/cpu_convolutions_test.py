"""Tests that convolutions for CPUs equal XLA's, and run on CPUs only."""

import functools

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax import ops
from gswinrmt_jax.models import layers
from gswinrmt_jax.ops import cpu_convolutions

# Shapes that take each path of a form: (form, map, kernel, options, order), in
# which order 2 is a case with second derivatives. These follow from the code of
# the gradient, so that each kind of sum in it needs them once.
_CASES = [
    ('by_patches', (2, 4, 6, 3), (3, 3, 3, 5), {'stride': 2}, 2),
    ('by_patches', (2, 1, 1, 8), (3, 3, 8, 4), {'stride': 2}, 1),
    ('by_patches', (3, 2, 4, 3), (3, 3, 3, 5), {'stride': 1}, 1),
    *(
        ('by_shifts', shape, (size, size, 1, shape[-1]), {}, order)
        for size, shape, order in [
            (3, (2, 4, 5, 3), 1),  # one channel group, by maps
            (3, (2, 1, 2, 3), 2),  # smaller than the kernel, by rows
            (5, (2, 2, 3, 128), 1),  # channel groups, by rows
            (3, (2, 4, 6, 32), 2),  # channel groups, by maps
            (3, (2, 12, 7, 3), 2),  # six rows at a time
            (5, (2, 16, 5, 3), 1),  # eight rows at a time, in groups of taps
            (3, (5, 2, 33, 3), 2),  # five images at a time
            (3, (1, 11, 7, 3), 1),  # indivisible
        ]
    ),
]


@pytest.mark.parametrize(
    ('name', 'shape', 'kernel', 'options', 'order'), _CASES
)
def test_each_form_is_the_convolution(name, shape, kernel, options, order):
  """Values, gradients and, with order 2, second derivatives, in float64."""
  rng = np.random.default_rng(0)

  def outputs(function, arrays):
    function = functools.partial(function, **options)

    def loss(*arrays):
      y = function(*arrays)
      return jnp.sin(y).sum(), y

    def slopes(*arrays):
      return sum(jnp.sin(g).sum() for g in gradient(*arrays)[0])

    gradient = jax.grad(loss, (0, 1), has_aux=True)
    second = jax.grad(slopes, (0, 1))(*arrays) if order == 2 else ()
    return gradient(*arrays), second

  with jax.enable_x64(True):
    arrays = [jnp.asarray(rng.normal(size=each)) for each in (shape, kernel)]
    run = jax.jit(outputs, static_argnums=0)
    chex.assert_trees_all_close(
        run(getattr(cpu_convolutions, name), arrays),
        run(ops.plain_conv, arrays),
        rtol=1e-10,
        atol=1e-10,
    )


def _conv(x, kernel):
  return ops.depthwise_conv(x, kernel).sum()


_ARRAYS = np.ones((1, 8, 8, 4), np.float32), np.ones((3, 3, 1, 4), np.float32)


def _has_convolution(platform, function, *arrays):
  traced = jax.jit(function).trace(*arrays)
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  return 'stablehlo.convolution' in text


def test_a_program_has_the_form_for_its_device():
  """It is traced on a CPU here; GPU and TPU run XLA's convolutions."""
  depthwise = jax.value_and_grad(_conv, (0, 1)), *_ARRAYS
  few = functools.partial(ops.conv3x3, stride=1), *map(
      np.ones, ((1, 2, 4, 3), (3, 3, 3, 5))
  )
  many = functools.partial(ops.conv3x3, stride=1), *map(
      np.ones, ((1, 3, 4, 3), (3, 3, 3, 5))
  )
  for case in (depthwise, few):
    assert not _has_convolution('cpu', *case)
    assert _has_convolution('cuda', *case) and _has_convolution('tpu', *case)
  assert _has_convolution('cpu', *many)


def _applied(layer):
  """Returns `layer.apply`, as a function that JAX has not traced before."""
  return lambda variables, x: layer.apply(variables, x)


def test_plain_convolutions_are_for_every_device():
  """The interceptor leaves no form for CPUs in the program of a layer."""
  x = random_variables.image((1, 2, 4, 3))
  for layer in (
      layers.DepthwiseConv(3, jnp.float32),
      layers.Conv(5, 3, jnp.float32),
      layers.Conv(5, 3, jnp.float32, stride=2),
  ):
    shapes = jax.eval_shape(layer.init, jax.random.key(0), x)
    variables = random_variables.of_shapes(shapes)
    ours, plain = _applied(layer), _applied(layer)
    assert not _has_convolution('cpu', ours, variables, x)
    with nn.intercept_methods(layers.plain_convolutions):
      assert _has_convolution('cpu', plain, variables, x)
      expected = jax.jit(plain)(variables, x)
    np.testing.assert_allclose(expected, jax.jit(ours)(variables, x), atol=1e-6)
