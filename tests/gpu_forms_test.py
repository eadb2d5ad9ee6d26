"""The forms for a GPU: values and gradients of those for a CPU."""

import dataclasses
import functools

import for_gpu
import jax
from jax import export
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax import ops
from gswinrmt_jax.models import block, named
from gswinrmt_jax.ops import arrays, backend, rotary

B, H, W, C, F = 2, 3, 5, 4, 6


def _arrays(*shapes, dtype=np.float64):
  rng = np.random.default_rng(0)
  return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


@pytest.fixture(name='large')
def _large():
  """Returns a context in which every map is a large one of a GPU."""
  return functools.partial(for_gpu.maps_large_from, 0)


@pytest.fixture(name='gpu', params=[0, 2**62], ids=['large', 'small'])
def _gpu(request):
  """Returns one of a GPU, with every map a large or a small one."""
  return functools.partial(for_gpu.maps_large_from, request.param)


def _with_gradients(function, inputs, cotangents):
  @jax.jit
  def run(inputs):
    out, pull = jax.vjp(function, *inputs)
    return jax.tree.leaves((out, pull(cotangents(out))))

  return run(inputs)


def _cotangents(out):
  """Numbers as unlike each other as those of the result."""
  return jax.tree.map(lambda y: jnp.cos(7 * y + 1), out)


def _agree(function, inputs, gpu, atol=1e-12):
  plain = _with_gradients(function, inputs, _cotangents)
  with gpu():
    other = _with_gradients(lambda *a: function(*a), inputs, _cotangents)
  for actual, expected in zip(other, plain, strict=True):
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
  return plain


def test_what_is_large(large):
  def found(*shape):
    seen = []
    jax.eval_shape(
        lambda x: seen.append(arrays.is_large(x)),
        jax.ShapeDtypeStruct(shape, jnp.bfloat16),
    )
    return seen[0]

  (any_batch,) = export.symbolic_shape('b')
  assert not found(128, 196, 512)  # a CPU's
  with backend.tracing_for('gpu'):
    assert found(128, 196, 512) and not found(128, 64, 64)
    assert not found(any_batch, 2**12, 2**12)
  with large():
    assert found(128, 64, 64)


@pytest.mark.parametrize('layer', [ops.dense, ops.dense_gelu])
def test_linear_layers(layer, gpu):
  with jax.enable_x64(True):
    _agree(layer, _arrays((B, H, W, C), (C, F), (F,)), gpu)


def test_gradients_for_any_batch():
  """Which is no number: of such a map no layout is asked for."""

  def gradients(x, kernel, bias):
    y, pull = jax.vjp(ops.dense, x, kernel, bias)
    return pull(y)

  (any_batch,) = export.symbolic_shape('b')
  shapes = [
      jax.ShapeDtypeStruct((any_batch, H, W, C), jnp.bfloat16),
      jax.ShapeDtypeStruct((C, F), jnp.float32),
      jax.ShapeDtypeStruct((F,), jnp.float32),
  ]
  with backend.tracing_for('gpu'):
    exported = export.export(jax.jit(gradients))(*shapes)
  assert [a.shape for a in exported.out_avals] == [a.shape for a in shapes]


def test_parts(gpu):
  def parts(*inputs):
    return ops.dense_parts(*inputs, parts=3)

  with jax.enable_x64(True):
    inputs = _arrays((B, H, W, C), (C, F), (F,))
    one, two, three, *_ = _agree(parts, inputs, gpu)
    whole = ops.dense(*inputs)
  np.testing.assert_allclose(
      jnp.concatenate([one, two, three], -1), whole, atol=1e-12
  )


@pytest.mark.parametrize('keep', [None, (0.0, 1.25)])
@pytest.mark.parametrize('gated', [False, True])
def test_residual_layers(keep, gated, gpu):
  def layer(x, kernel, bias, residual, logits):
    gate = ops.sigmoid_gate(logits) if gated else None
    kept = None if keep is None else jnp.array(keep)
    return ops.residual_dense(x, kernel, bias, residual, kept, gate)

  with jax.enable_x64(True):
    maps = (B, H, W, F)
    inputs = _arrays((B, H, W, C), (C, F), (F,), maps, maps)
    y, *_ = _agree(layer, inputs, gpu)
    x, kernel, bias, residual, logits = map(np.asarray, inputs)
  branch = x @ kernel + bias
  if keep is not None:
    branch *= np.array(keep)[:, None, None, None]
  expected = residual + branch
  if gated:
    expected /= 1 + np.exp(-logits)
  np.testing.assert_allclose(y, expected, atol=1e-12)


def test_forward_over_reverse_mode(gpu):
  """Hessians times vectors, of all layers in a row."""

  def loss(x, kernel, bias, logits):
    one, two = ops.dense_parts(x, kernel, bias, parts=2)
    hidden = ops.dense_gelu(one, kernel[:3], bias)
    gate = ops.sigmoid_gate(logits)
    return jnp.sin(
        ops.residual_dense(two, kernel[:3], bias, hidden, None, gate)
    ).sum()

  with jax.enable_x64(True):
    inputs = _arrays((B, H, W, C), (C, F), (F,), (B, H, W, F))
    vectors = [jnp.cos(each) for each in inputs]

    def product(*inputs):
      return jax.jvp(jax.grad(loss, range(4)), inputs, tuple(vectors))[1]

    plain = product(*inputs)
    with gpu():
      other = product(*inputs)
  for actual, expected in zip(other, plain, strict=True):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)


def test_a_gate_of_zero_has_a_gradient_of_zero(large):
  """What it gates cannot be had back from the result."""
  x, kernel, bias, residual = _arrays(
      (1, 1, 1, C), (C, 2), (2,), (1, 1, 1, 2), dtype=np.float32
  )
  gate = jnp.array([0.0, 0.5]).reshape(1, 1, 1, 2)
  with large():
    y, pull = jax.vjp(
        lambda gate: ops.residual_dense(x, kernel, bias, residual, None, gate),
        gate,
    )
    (dgate,) = pull(jnp.ones_like(y))
  assert y[0, 0, 0, 0] == dgate[0, 0, 0, 0] == 0
  np.testing.assert_allclose(dgate[0, 0, 0, 1], y[0, 0, 0, 1] / 0.5, rtol=1e-6)


def test_biases_are_summed_in_float32_by_a_product(gpu):
  """25,088 ones would stop at 256 in bfloat16; of any numbers, the sum."""
  shape = (8, 56, 56)
  x, dy = _arrays((*shape, 2), (*shape, 3), dtype=jnp.bfloat16)
  dy = dy.at[..., 0].set(1)
  kernel, bias = _arrays((2, 3), (3,), dtype=np.float32)
  with gpu():
    text = str(
        jax.make_jaxpr(lambda *a: jax.vjp(ops.dense, *a)[1](dy))(
            x, kernel, bias
        )
    )
    _, pull = jax.vjp(lambda *a: ops.dense(*a), x, kernel, bias)
    _, dkernel, dbias = pull(dy)
  assert 'concatenate' in text
  x, dy = (np.float64(m).reshape(-1, m.shape[-1]) for m in (x, dy))
  assert dbias[0] == len(dy)
  np.testing.assert_allclose(dbias, dy.sum(0), rtol=1e-5)
  np.testing.assert_allclose(dkernel, x.T @ dy, rtol=1e-4, atol=1e-2)


def test_a_saturated_gate_in_bfloat16(large):
  """The slope that is left is that of the rounded gate."""
  x = jnp.array([-9.0, 0.0, 3.0], jnp.bfloat16)
  with large():
    y, pull = jax.vjp(lambda x: ops.sigmoid_gate(x), x)
    (dx,) = pull(jnp.ones_like(y))
  np.testing.assert_allclose(
      np.float32(dx), np.float64(y) * (1 - np.float64(y)), rtol=1e-2
  )


@pytest.mark.parametrize('name', ['retention_compact', 'swat_compact'])
@pytest.mark.parametrize('shifted', [False, True])
def test_whole_blocks_in_training(name, shifted, gpu):
  """All parameters and the map, with a branch that is dropped."""
  arch = dataclasses.replace(
      named.MODELS[name],
      widths=(8,) * 4,
      num_heads=(2,) * 4,
      mlp_ratios=(2.0,) * 4,
      window_size=3,
  )
  module = block.Block(arch, 0, shifted, jnp.float64)
  keep = jnp.array([[1.0, 0.0], [0.0, 1.25]])
  shape = (2, 9, 10, 8)

  class Model:

    def init(self, key, x, train):
      del train
      return module.init(key, x, keep)

  with jax.enable_x64(True):
    params = random_variables.nested(Model(), shape)['params']
    params, x = jax.tree.map(
        lambda a: jnp.asarray(a, jnp.float64),
        (params, random_variables.image(shape)),
    )

    def run(params, x):
      return module.apply({'params': params}, x, keep)

    _agree(jax.jit(run), (params, x), gpu, atol=1e-11)


@pytest.mark.parametrize(('window', 'before'), [(16, False), (17, True)])
def test_long_lines_are_rotated_before(window, before, large):
  """Which takes pairs with their channels exchanged."""
  maps = [jnp.zeros((1, 17, 17, 1, 4))] * 3
  rotation = rotary.split_half(4)
  with large():
    text = str(
        jax.make_jaxpr(
            lambda *a: ops.retention(
                *a, None, window=window, impl='auto', rotation=rotation
            )
        )(*maps)
    )
  assert ('rev[' in text) == before
