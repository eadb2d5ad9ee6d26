"""The kernels of the FFN's middle, against the equations one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops, pallas


def _parts(z, kernel, conv_bias, scale, bias):
  hidden = ops.gelu(z)
  local = ops.depthwise_conv(hidden, kernel, impl='conv')
  local = local + conv_bias[None, None, None].astype(z.dtype)
  return hidden + ops.layer_norm(local, scale, bias)


def _inputs(shape, side, dtype, mean=0.0):
  rng = np.random.default_rng(0)
  channels = shape[-1]
  vectors = rng.normal(size=(3, channels)) + np.array([[mean], [1], [0]])
  z, ds = (jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2))
  kernel = rng.normal(size=(side, side, 1, channels)) / side
  wide = jnp.promote_types(dtype, jnp.float32)
  return [z, *(jnp.asarray(v, wide) for v in (kernel, *vectors))], ds


def _with_gradients(function, inputs, ds):
  out, pull = jax.vjp(function, *inputs)
  return [out, *pull(ds)]


@pytest.mark.parametrize(
    ('shape', 'side'),
    [
        ((2, 3, 5, 6), 3),  # tiles of two channels, rows of none
        ((3, 1, 1, 64), 3),  # no neighbours
        ((1, 7, 9, 192), 5),  # several tiles of channels
        ((2, 17, 18, 4), 3),  # several programs that sum over tokens
    ],
)
def test_values_and_gradients_are_those_of_the_parts(shape, side):
  with jax.enable_x64(True):
    inputs, ds = _inputs(shape, side, np.float64)
    actual = _with_gradients(pallas.gelu_conv_norm, inputs, ds)
    expected = _with_gradients(_parts, inputs, ds)
  names = ['s', 'z', 'kernel', 'conv_bias', 'scale', 'bias']
  for name, ours, other in zip(names, actual, expected, strict=True):
    # GELU backward is to the seventh decimal, over all tokens of a sum.
    atol = {'z': 2e-6, 'kernel': 2e-5}.get(name, 1e-11)
    np.testing.assert_allclose(ours, other, rtol=0, atol=atol, err_msg=name)


def test_bfloat16_is_rounded_no_more_than_by_the_parts():
  inputs, ds = _inputs((2, 6, 5, 32), 3, jnp.bfloat16)
  actual = _with_gradients(pallas.gelu_conv_norm, inputs, ds)
  rounded = _with_gradients(_parts, inputs, ds)
  exact = _with_gradients(
      _parts,
      [x.astype(jnp.float32) for x in inputs],
      ds.astype(jnp.float32),
  )
  for ours, other, best in zip(actual, rounded, exact, strict=True):
    assert ours.dtype == other.dtype
    errors = (np.abs(x.astype(jnp.float32) - best).max() for x in (ours, other))
    error, limit = errors
    assert error < 1.2 * limit + 1e-6


def test_a_mean_far_from_zero_costs_no_digits():
  """Of the variance: `E[c^2] - E[c]^2` would be 0 here."""
  inputs, _ = _inputs((2, 3, 4, 128), 3, np.float32, mean=3e3)
  with jax.enable_x64(True):
    exact = _parts(*(x.astype(np.float64) for x in inputs))
  actual = pallas.gelu_conv_norm(*inputs)
  np.testing.assert_allclose(actual, exact, atol=5e-3)
