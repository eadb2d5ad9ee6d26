"""Parameters are those that flax would make; their shapes are checked."""

from flax import errors
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.models.parameter import parameter


class _Scale(nn.Module):
  """Multiplies by a parameter, made one way or the other."""

  plain: bool = False

  @nn.compact
  def __call__(self, x):
    init = nn.initializers.normal()
    if self.plain:
      return x * self.param('scale', init, x.shape, jnp.float32)
    return x * parameter(self, 'scale', init, x.shape)


@pytest.mark.parametrize('plain', [False, True])
def test_it_is_made_and_checked_as_flax_does(plain):
  module, x = _Scale(plain), jnp.ones(3)
  params = module.init(jax.random.key(7), x)['params']
  expected = _Scale(plain=True).init(jax.random.key(7), x)['params']
  np.testing.assert_array_equal(params['scale'], expected['scale'])
  np.testing.assert_array_equal(
      module.apply({'params': params}, x), params['scale']
  )
  # By broadcasting, a number would do for a vector.
  with pytest.raises(errors.ScopeParamShapeError, match=r'"scale".*\(3,\)'):
    module.apply({'params': {'scale': jnp.ones(1)}}, x)
  with pytest.raises(errors.ScopeParamNotFoundError, match='scale'):
    module.apply({'params': {'other': jnp.ones(3)}}, x)


def test_a_name_is_taken_once():
  class Module(nn.Module):

    @nn.compact
    def __call__(self):
      parameter(self, 'scale', nn.initializers.ones, (2,))
      parameter(self, 'scale', nn.initializers.ones, (2,))

  with pytest.raises(errors.NameInUseError, match='scale'):
    Module().init(jax.random.key(0))


def test_nothing_is_traced_for_the_shape_of_one_that_is_there():
  def init(key, shape, dtype=jnp.float32, out_sharding=None):
    del key, shape, dtype, out_sharding
    raise AssertionError('traced')

  class Module(nn.Module):

    @nn.compact
    def __call__(self, x):
      return x * parameter(self, 'scale', init, (2,))

  scale = np.float32([3.0, 4.0])
  out = Module().apply({'params': {'scale': scale}}, jnp.ones(2))
  np.testing.assert_array_equal(out, scale)
