"""Computing anew what the gradient needs: less is kept, nothing changes."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gswinrmt_jax
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.models import backbone

_FIELDS = {
    'widths': (8, 16, 24, 32),
    'depths': (2, 1, 1, 1),
    'num_heads': (2, 2, 3, 4),
    'window_size': 3,
}


def _model(remat):
  return gswinrmt_jax.create_model(
      'retention_compact', num_classes=5, remat=remat, **_FIELDS
  )


def _loss(remat, params, x, keep):
  """Of the first stage alone, blocks of whose branches are dropped."""
  stage = backbone.Stage(_model(remat).arch, 0, jnp.float32, remat)
  return jnp.sin(stage.apply({'params': params}, x, keep)).sum()


@pytest.fixture(scope='module')
def arguments():
  x = jax.random.normal(jax.random.key(0), (2, 6, 6, 8))
  keep = jnp.array([[[1.25, 0.0], [0.0, 1.25]], [[2.0, 2.0], [0.0, 2.0]]])
  stage = backbone.Stage(_model('none').arch, 0, jnp.float32)
  shapes = jax.eval_shape(stage.init, jax.random.key(1), x, None)['params']
  rng = np.random.default_rng(0)
  params = jax.tree.map(
      lambda leaf: jnp.asarray(rng.normal(0.3, 0.3, leaf.shape), leaf.dtype),
      shapes,
  )
  return params, x, keep


def _gradient(remat, arguments):
  gradient = jax.grad(functools.partial(_loss, remat), (0, 1))
  quick = mesh.quick_compilation()
  return jax.jit(gradient, compiler_options=quick)(*arguments)


@pytest.mark.parametrize('remat', ['elementwise', 'blocks'])
def test_gradients_and_parameters_are_those_without(arguments, remat):
  expected = _gradient('none', arguments)
  found = _gradient(remat, arguments)
  chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)
  leaves = jax.tree.leaves(expected)
  assert all(np.abs(leaf).max() > 1e-3 for leaf in leaves)

  x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
  shapes = [
      jax.eval_shape(
          functools.partial(_model(name).init, train=True),
          {'params': jax.random.key(0), 'dropout': jax.random.key(1)},
          x,
      )
      for name in ('none', remat)
  ]
  chex.assert_trees_all_equal(*shapes)


def test_each_keeps_less_for_the_gradient(arguments):
  def kept(remat):
    """Bytes from the forward to the backward pass."""

    def forward(*args):
      return jax.vjp(functools.partial(_loss, remat), *args)[1]

    leaves = jax.tree.leaves(jax.eval_shape(forward, *arguments))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

  sizes = {remat: kept(remat) for remat in backbone.REMAT}
  assert sizes['blocks'] < sizes['elementwise'] < sizes['none']


def test_every_stage_is_told():
  bound = _model('blocks').bind({})
  stages = [getattr(bound, f'stage{number}') for number in (1, 2, 3, 4)]
  assert [stage.remat for stage in stages] == ['blocks'] * 4
