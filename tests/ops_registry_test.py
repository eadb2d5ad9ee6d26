"""Tests equations: shared programs, and implementations that equal them."""

import chex
import jax
from jax import export
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import fast, ops
from gswinrmt_jax.ops.registry import Equation, equation

X = np.float32([1.0, 2.0])
_EQUATIONS = {
    name: value
    for name, value in vars(ops).items()
    if isinstance(value, Equation)
}
# Arguments that take each path of an implementation: (shapes, options).
_CASES = {
    'patches': [
        ([(2, 4, 6, 3), (3, 3, 3, 5)], {'stride': 2}),
        ([(2, 1, 1, 8), (3, 3, 8, 4)], {'stride': 2}),
        ([(3, 2, 4, 3), (3, 3, 3, 5)], {'stride': 1}),
    ],
    'shift': [
        ([shape, (size, size, 1, shape[-1])], {})
        for size, shape in [
            (5, (2, 4, 5, 3)),
            (3, (2, 1, 2, 3)),  # smaller than the kernel
            (5, (2, 2, 3, 128)),  # channel groups, by rows
            (3, (2, 4, 6, 32)),  # channel groups, by maps
            (3, (2, 12, 7, 3)),  # six rows at a time
            (5, (2, 16, 5, 3)),  # eight rows at a time
            (3, (5, 2, 33, 3)),  # five images at a time
            (3, (1, 11, 7, 3)),  # indivisible
        ]
    ],
}


@pytest.mark.parametrize('seam', _EQUATIONS.values(), ids=_EQUATIONS)
def test_every_implementation_is_its_equation(seam):
  """Values and gradients, in float64; second derivatives in the first case."""
  rng = np.random.default_rng(0)
  for other in seam.implementations:
    for index, (shapes, options) in enumerate(_CASES[other.name]):

      def outputs(function, arrays, options=options, twice=index == 0):
        def loss(*arrays):
          y = function(*arrays, **options)
          return jnp.sin(y).sum(), y

        def slopes(*arrays):
          return sum(jnp.sin(g).sum() for g in gradient(*arrays)[0])

        gradient = jax.grad(loss, (0, 1), has_aux=True)
        seconds = jax.grad(slopes, (0, 1))(*arrays) if twice else ()
        return gradient(*arrays), seconds

      with jax.enable_x64(True):
        arrays = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
        assert other.when(*arrays, **options)
        run = jax.jit(outputs, static_argnums=0)
        chex.assert_trees_all_close(
            run(other.function, arrays),
            run(seam.function, arrays),
            rtol=1e-10,
            atol=1e-10,
        )


def test_the_cases_are_those_of_the_implementations():
  registered = {
      other.name
      for each in _EQUATIONS.values()
      for other in each.implementations
  }
  assert registered == _CASES.keys() and fast.cpu


def _conv(x, kernel):
  return ops.depthwise_conv(x, kernel).sum()


_ARRAYS = np.ones((1, 8, 8, 4), np.float32), np.ones((3, 3, 1, 4), np.float32)


def _grouped(platform):
  """Returns whether a device runs XLA's convolutions."""
  traced = jax.jit(jax.value_and_grad(_conv, (0, 1))).trace(*_ARRAYS)
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  return 'stablehlo.convolution' in text


def test_a_program_uses_the_implementation_for_its_device():
  """It is traced on a CPU here; GPU and TPU run XLA's convolutions."""
  assert not _grouped('cpu')
  assert _grouped('cuda') and _grouped('tpu')


def test_implementations_are_chosen_or_left_out():
  with ops.plain():
    assert _grouped('cpu')
    with ops.implementations(depthwise='shift'):
      assert not _grouped('cpu')
  with ops.implementations(depthwise='conv'):
    assert _grouped('cpu')
  with ops.implementations(depthwise='shift'):
    assert not _grouped('cuda')
    with ops.implementations(attention='cyclic'):  # None keeps the outer choice
      assert not _grouped('cuda')
    with ops.implementations(depthwise='auto'):
      assert _grouped('cuda')
  assert not _grouped('cpu')


@pytest.mark.parametrize('form', ['softmax', 'sigmoid', 'linear'])
def test_windows_are_computed_as_chosen(form):
  maps = [jnp.ones((1, 4, 6, 1, 2))] * 3

  def text(**how):
    def attend(*m):
      return ops.FORMS[form](*m, None, None, window=2, **how)

    return str(jax.make_jaxpr(attend)(*maps).eqns[0].params['jaxpr'].jaxpr.eqns)

  banded = text()
  with ops.implementations(attention='cyclic'):
    cyclic = text()
    assert cyclic != banded
    with ops.plain():
      assert text() == cyclic
    assert text(impl='banded') == banded
    assert text(impl='auto') == cyclic
  assert text() == banded
  assert text(impl='cyclic') == cyclic
  with pytest.raises(ValueError, match="impl='rolled' is not one of"):
    text(impl='rolled')


@pytest.mark.parametrize('name', ['attention', 'depthwise'])
def test_an_unknown_choice_is_refused(name):
  with pytest.raises(ValueError, match=f"{name}='rolled' is not one of"):
    with ops.implementations(**{name: 'rolled'}):
      pass


def test_an_exported_program_serves_all_devices():
  """The exported gradient, with implementations inside, runs here."""
  gradient = jax.jit(jax.grad(_conv, (0, 1)))
  program = export.export(gradient, platforms=('cpu', 'cuda', 'tpu'))(*_ARRAYS)
  program = export.deserialize(program.serialize(vjp_order=0))
  for one, other in zip(
      program.call(*_ARRAYS), gradient(*_ARRAYS), strict=True
  ):
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.fixture(name='scaled')
def _scaled():
  """Returns an equation that records the arguments it is traced with."""
  seen = []

  @equation
  def scaled(x, shift=None, *, factor=2):
    """Returns `factor x + shift`."""
    seen.append((x.shape, shift is None, factor))
    y = factor * x
    return y if shift is None else y + shift

  scaled.seen = seen
  return scaled


def test_all_calls_of_a_shape_share_a_program(scaled):
  def loss(x):
    return jnp.sin(scaled(x) + scaled(3 * x)).sum()

  gradient = jax.grad(loss)(X)
  np.testing.assert_allclose(gradient, 8 * np.cos(8 * X), rtol=1e-6)
  assert scaled.seen == [((2,), True, 2)]
  assert 'name=scaled' in str(jax.make_jaxpr(lambda x: scaled(x))(X))
  assert scaled.__doc__ == 'Returns `factor x + shift`.'


def test_what_makes_another_program_is_traced_again(scaled):
  np.testing.assert_array_equal(scaled(X), 2 * X)
  np.testing.assert_array_equal(scaled(X[:1]), 2 * X[:1])
  np.testing.assert_array_equal(scaled(X, factor=3), 3 * X)
  np.testing.assert_array_equal(scaled(X, shift=X, factor=3), 4 * X)
  assert scaled.seen == [
      ((2,), True, 2),
      ((1,), True, 2),
      ((2,), True, 3),
      ((2,), False, 3),
  ]


def test_an_implementation_is_for_its_device_and_arguments(scaled):
  @scaled.implementation(
      'sums', on='cpu', when=lambda x, shift, *, factor: factor == 2
  )
  def doubled(x, shift, *, factor):
    del shift, factor
    return x + x

  def text(**options):
    return str(jax.make_jaxpr(lambda x: scaled(x, **options))(X))

  assert 'platform_index' in text() and 'platform_index' not in text(factor=3)
  with ops.plain():
    assert 'platform_index' not in text()
  np.testing.assert_array_equal(scaled(X), 2 * X)
