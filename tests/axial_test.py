"""What all attention forms share: implementations, biases, masks."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.ops import axial, backend, rotary

N, D = 3, 4
ROTATIONS = {  # of neighbours and of halves, in steps of their own each way
    'softmax': rotary.Rotation((1.0, 0.1), (1, 5), -1),
    'sigmoid': rotary.Rotation((0.7, 0.3), (2, 3), -2),
    'linear': rotary.Rotation((1.0, 0.1), (0, 1), -2),
}


def _maps(height, width):
  rng = np.random.default_rng(0)
  return tuple(
      jnp.asarray(rng.normal(size=(2, height, width, N, D))) for _ in range(3)
  )


@pytest.mark.parametrize('form', ops.FORMS)
@hypothesis.settings(max_examples=4, deadline=None)
@hypothesis.example(height=1, width=1, window=3, shift=1)
@hypothesis.example(height=9, width=4, window=5, shift=2)
@hypothesis.example(height=4, width=6, window=2, shift=1)
@hypothesis.given(
    height=st.integers(1, 11),
    width=st.integers(1, 11),
    window=st.integers(1, 6),
    shift=st.integers(0, 5),
)
def test_implementations_agree_forward_and_backward(
    form, height, width, window, shift
):
  """To 1e-12 in float64, for any extent, window and shift; all finite."""
  with jax.enable_x64(True):
    maps = _maps(height, width)
    log_decay = jnp.log(jnp.array([[0.5, 0.8, 0.95], [0.6, 0.7, 0.9]]))
    slopes = jnp.array([-0.5, 0.5, 0.25])

    def run(impl):
      def loss(query, key, value, log_decay, slopes):
        out = ops.FORMS[form](
            query,
            key,
            value,
            log_decay,
            slopes=slopes,
            window=window,
            shift=shift,
            impl=impl,
            rotation=ROTATIONS[form],
        )
        return jnp.sum(jnp.sin(out)), out

      (_, out), grads = jax.value_and_grad(loss, range(5), has_aux=True)(
          *maps, log_decay, slopes
      )
      return (out, *grads)

    impls = ('banded', 'cyclic', 'blocked')
    runs = jax.jit(lambda: tuple(run(impl) for impl in impls))()
    for ours, *others in zip(*runs, strict=True):
      assert np.isfinite(ours).all()
      for other in others:
        np.testing.assert_allclose(other, ours, atol=1e-12)


@pytest.mark.parametrize('form', ops.FORMS)
def test_a_gpu_takes_blocks(form):
  maps = _maps(4, 6)

  def text(impl):
    program = jax.make_jaxpr(
        lambda q, k, v: ops.FORMS[form](
            q, k, v, None, slopes=None, window=2, impl=impl
        )
    )
    return str(program(*maps))

  with backend.tracing_for('gpu'):
    assert text('auto') == text('blocked')
  assert 'dot_general' not in text('blocked')
  assert text('auto') == text('banded')


def test_offsets_are_query_minus_key():
  np.testing.assert_array_equal(
      axial.offsets(3), [[0, -1, -2], [1, 0, -1], [2, 1, 0]]
  )


def test_head_table_is_the_product_of_head_and_distance():
  scores = jnp.zeros((1, 1, 2, 2, 2))
  table = axial.head_table(jnp.array([2.0, -1.0]), axial.offsets(2), scores)
  np.testing.assert_array_equal(
      table, [[[[[0, -2], [2, 0]], [[0, 1], [-1, 0]]]]]
  )


def test_bias_signed_absolute_and_none():
  scores = jnp.ones((1, 1, 1, 2, 2))
  slopes = jnp.array([3.0])
  np.testing.assert_array_equal(
      axial.biased(scores, slopes, False)[0, 0, 0], [[1, -2], [4, 1]]
  )
  np.testing.assert_array_equal(
      axial.biased(scores, slopes, True)[0, 0, 0], [[1, 4], [4, 1]]
  )
  assert axial.biased(scores, None, False) is scores


def test_unknown_implementation_is_refused():
  with pytest.raises(ValueError, match='rolled'):
    ops.retention(*_maps(2, 3), None, impl='rolled')
