"""Attention's kernel, against the einsums of the cyclic form in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops, pallas
from gswinrmt_jax.ops import rotary

B, N, D = 2, 3, 16
# Height, width, window, shift. Lines are filled up to powers of two: 5 and 7 to
# 8, of which a tile has eight; of 33 and more it has one.
SIZES = [(7, 5, None, 0), (14, 13, 7, 3), (9, 20, 6, 3), (2, 34, 33, 16)]


def _inputs(height, width, dtype=np.float64):
  rng = np.random.default_rng(0)
  shape = B, height, width, N, D
  maps = [jnp.asarray(rng.normal(size=shape), dtype) for _ in range(4)]
  *maps, dout = maps
  wide = jnp.promote_types(dtype, jnp.float32)
  log_decay = jnp.asarray(np.log(rng.uniform(0.5, 1, (2, N))), wide)
  slopes = jnp.asarray(rng.normal(size=N) / 4, wide)
  return [*maps, log_decay], slopes, dout


def _with_gradients(form, inputs, dout, **options):
  def function(*inputs):
    return form(*inputs, **options)

  out, pull = jax.vjp(function, *inputs)
  return [out, *pull(dout)]


def _agree(form, inputs, dout, atol=1e-11, **options):
  options = {'scaled': form == 'softmax', **options}
  actual = _with_gradients(pallas.FORMS[form], inputs, dout, **options)
  expected = _with_gradients(
      ops.FORMS[form], inputs, dout, impl='cyclic', **options
  )
  names = ['out', 'query', 'key', 'value', 'log_decay']
  for name, ours, other in zip(names, actual, expected, strict=True):
    if ours is None:
      assert other is None
      continue
    assert ours.dtype == other.dtype
    np.testing.assert_allclose(
        np.float64(ours), np.float64(other), rtol=0, atol=atol, err_msg=name
    )


@pytest.mark.parametrize('form', pallas.FORMS)
@pytest.mark.parametrize(('height', 'width', 'window', 'shift'), SIZES)
def test_values_and_gradients_are_those_of_the_einsums(
    height, width, window, shift, form
):
  with jax.enable_x64(True):
    inputs, slopes, dout = _inputs(height, width)
    _agree(
        form,
        inputs,
        dout,
        slopes=slopes,
        window=window,
        shift=shift,
        scaled=form == 'softmax',
        rotation=rotary.interleaved(D, width),
    )


@pytest.mark.parametrize('form', pallas.FORMS)
@pytest.mark.parametrize(
    'options',
    [
        {'rotation': rotary.split_half(D)},
        {
            'rotation': rotary.Rotation(
                tuple(rotary.interleaved_frequencies(D)), (1, 5), -1
            )
        },
        {'absolute': True},
        {'scaled': True},
        {'scaled': False},
        {'slopes': None},
    ],
    ids=[
        'split half',
        'interleaved',
        'absolute',
        'scaled',
        'unscaled',
        'no slope',
    ],
)
def test_each_switch_is_that_of_the_einsums(form, options):
  with jax.enable_x64(True):
    inputs, slopes, dout = _inputs(5, 9)
    options = {'slopes': slopes, 'window': 4, 'shift': 2} | options
    _agree(form, inputs, dout, **options)


@pytest.mark.parametrize('form', pallas.FORMS)
def test_without_decay(form):
  with jax.enable_x64(True):
    inputs, slopes, dout = _inputs(3, 4)
    inputs = [*inputs[:3], None]
    _agree(form, inputs, dout, slopes=slopes, window=None)


@pytest.mark.parametrize('form', pallas.FORMS)
def test_bfloat16(form):
  inputs, slopes, dout = _inputs(6, 10, jnp.bfloat16)
  options = {'window': 4, 'shift': 2, 'rotation': rotary.split_half(D)}
  _agree(form, inputs, dout, atol=0.06, slopes=slopes, **options)


def test_what_no_kernel_is_made_for_is_refused():
  maps = [jnp.zeros((1, 2, 65, 1, 16))] * 3
  with pytest.raises(ValueError, match='at most 64 tokens, not 65: set'):
    pallas.FORMS['softmax'](*maps, None)
  maps = [jnp.zeros((1, 2, 2, 1, 24))] * 3
  with pytest.raises(
      ValueError, match=r'16, 32, 64, 128\) channels, not 24: set'
  ):
    pallas.FORMS['sigmoid'](*maps, None)
