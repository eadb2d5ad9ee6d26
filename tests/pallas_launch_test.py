"""What all kernels do: tiles, vectors, GELU; and when they are taken at all."""

import dataclasses

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax import ops, pallas
from gswinrmt_jax.models import factory
from gswinrmt_jax.ops import backend
from gswinrmt_jax.pallas import gelu, launch

_KERNELS = {'attention_impl': 'pallas', 'ffn_impl': 'pallas'}
_SMALL = {
    'widths': (32, 48),
    'depths': (2, 1),
    'num_heads': (2, 3),
    'mlp_ratios': (2.0, 1.5),
    'layer_scale': (0.5, 0.0),
    'decay_ranges': (4.0, 4.0),
    'window_size': 3,
    'drop_path_rate': 0.0,
}


def test_only_what_is_valid_is_read_and_written():
  def kernel(x, out):
    rows = launch.span(pl.program_id(0) * 4, 4)
    columns = launch.span(0, 2)
    odd = rows % 2 == 1
    tile = launch.load(x, rows - 1, columns, odd)
    launch.store(out, rows, columns, rows < 5, tile + 1)

  x = jnp.arange(10, dtype=jnp.bfloat16).reshape(5, 2)
  out = jax.ShapeDtypeStruct((5, 2), jnp.float32)
  (found,) = launch.run(kernel, x, name='k', grid=(2,), out=[out], warps=1)
  np.testing.assert_array_equal(found, [[1, 1], [1, 2], [1, 1], [5, 6], [1, 1]])


@pytest.mark.parametrize(
    ('channels', 'tile'), [(96, 32), (24, 8), (7, 1), (256, 64)]
)
def test_tiles_divide_the_channels(channels, tile):
  assert launch.tile_of(channels, 64) == tile


def test_an_array_beyond_32_bits_is_refused():
  out = jax.ShapeDtypeStruct((2**16, 2**15), jnp.int8)
  with pytest.raises(ValueError, match=r'\(65536, 32768\) has 2,147,483,648'):
    launch.run(lambda out: None, name='k', grid=(1,), out=[out], warps=1)


def test_gelu_and_its_derivative():
  x = jnp.linspace(-9, 9, 4001)
  actual = gelu.gelu_and_slope(x)
  expected = ops.gelu(x), jax.vmap(jax.grad(ops.gelu))(x)
  for ours, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(ours, other, rtol=0, atol=6e-7)


def _loss(model, variables, image):
  logits, _ = model.apply(variables, image, train=True, mutable='batch_stats')
  return jnp.square(logits).sum()


@pytest.mark.parametrize('name', ['retention_compact', 'swat_compact'])
def test_a_model_with_kernels_is_the_same_model(name, monkeypatch):
  plain = factory.create_model(name, num_classes=3, **_SMALL)
  model = plain.clone(arch=dataclasses.replace(plain.arch, **_KERNELS))
  image = random_variables.image((2, 28, 36, 3))
  variables = random_variables.nested(plain, image.shape)
  expected = jax.jit(jax.value_and_grad(_loss, 1), static_argnums=0)(
      plain, variables, image
  )
  monkeypatch.setattr(pallas, 'runs_here', lambda: True)  # interpreted
  shapes = jax.tree.map(jnp.shape, random_variables.nested(model, image.shape))
  assert shapes == jax.tree.map(jnp.shape, variables)
  step = jax.jit(jax.value_and_grad(_loss, 1), static_argnums=0)
  assert str(step.trace(model, variables, image).jaxpr).count('pallas_call') > 9
  actual = step(model, variables, image)
  for ours, other in zip(
      *map(jax.tree.leaves, (actual, expected)), strict=True
  ):
    np.testing.assert_allclose(
        ours, other, rtol=1e-4, atol=2e-5 * np.abs(other).max() + 1e-6
    )


def test_a_cpu_and_several_devices_take_none(monkeypatch):
  model = factory.create_model(
      'retention_compact', num_classes=3, **_SMALL, **_KERNELS
  )
  image = jnp.zeros((1, 32, 32, 3))
  variables = random_variables.nested(model, image.shape)

  def text():
    program = jax.make_jaxpr(lambda *a: _loss(model, *a))
    return str(program(variables, image))

  assert 'pallas_call' not in text()
  with backend.tracing_for('gpu'):
    assert 'pallas_call' in text()


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason='compiled in compiled_test'
)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_triton_is_made_of_each(dtype):
  def all_of(maps, numbers):
    z = maps[0].reshape(*maps[0].shape[:3], -1)
    yield pallas.gelu_conv_norm(z, jnp.ones((3, 3, 1, 32)), *[numbers] * 3)
    for form in pallas.FORMS.values():
      yield form(*maps, None, window=4, shift=2)

  def run(maps, numbers):
    loss = lambda *a: sum(jnp.sum(out) for out in all_of(*a))  # noqa: E731
    return jax.grad(loss)(maps, numbers)

  with backend.tracing_for('gpu'):
    traced = jax.jit(run).trace(
        [jax.ShapeDtypeStruct((2, 7, 9, 2, 16), dtype)] * 3,
        jax.ShapeDtypeStruct((32,), np.float32),
    )
    text = traced.lower(lowering_platforms=('cuda',)).as_text()
  assert text.count('@__gpu$xla.gpu.triton') == 3 + 2 + 2


def test_what_has_no_kernel_is_told():
  def message(**fields):
    with pytest.raises(ValueError) as error:
      factory.create_model(
          'retention_compact', num_classes=3, **(_SMALL | _KERNELS | fields)
      )
    return str(error.value)

  assert "score_fn in ('softmax', 'sigmoid'), not 'linear': set attention_" in (
      message(score_fn='linear')
  )
  assert 'heads of (16, 32, 64, 128) channels, not 24' in message(
      num_heads=(2, 2)
  )
  assert "ffn_impl='triton' is not one of" in message(ffn_impl='triton')
