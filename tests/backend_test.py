"""The device that a computation is chosen for."""

import jax
import jax.numpy as jnp
import pytest

from gswinrmt_jax.ops import backend, conv, depthwise


def test_it_is_the_default_backend_unless_chosen():
  assert backend.platform() == jax.default_backend()
  with pytest.raises(KeyError), backend.tracing_for('gpu'):
    assert backend.platform() == 'gpu'
    raise KeyError
  assert backend.platform() == jax.default_backend()


@pytest.mark.parametrize(
    ('function', 'shapes'),
    [
        (
            jax.grad(lambda w, x: depthwise.depthwise_conv(x, w).sum()),
            ((3, 3, 1, 4), (1, 16, 16, 4)),
        ),
        (
            lambda x, w: conv.conv3x3(x, w, stride=2),
            ((1, 4, 4, 4), (3, 3, 4, 2)),
        ),
    ],
)
def test_convolutions_are_chosen_for_it(function, shapes):
  def program():
    arrays = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    # A new function each time: what was traced is kept.
    return str(jax.make_jaxpr(lambda *a: function(*a))(*arrays))

  with backend.tracing_for('gpu'):
    assert 'conv_general_dilated' in program()
  with backend.tracing_for('cpu'):
    assert 'conv_general_dilated' not in program()


def test_small_maps_take_shifts_on_a_gpu_too():
  with backend.tracing_for('gpu'):
    program = jax.make_jaxpr(lambda *a: depthwise.depthwise_conv(*a))(
        jnp.zeros((1, 8, 8, 4)), jnp.zeros((3, 3, 1, 4))
    )
  assert 'conv_general_dilated' not in str(program)
