"""What is drawn together is what would be drawn one by one."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gswinrmt_jax import create_model
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.train import joined_draws
from gswinrmt_jax.train import train_state as state_lib


def _several(generator='threefry2x32'):
  """Draws alike and not, by keys that are drawn themselves; one is unused."""
  key = jax.random.key(3, impl=generator)
  shapes = [(2, 3), (4,), (2, 3), (3, 2), (4,)]
  normal = [
      jax.random.normal(jax.random.fold_in(key, index), shape) * index
      for index, shape in enumerate(shapes)
  ]
  second = jax.random.fold_in(key, 7)
  uniform = [
      jax.random.uniform(
          jax.random.fold_in(second, index), (4,), minval=-bound, maxval=bound
      )
      for index, bound in enumerate((1.0, 2.0))
  ]
  jax.random.normal(key, (5,))
  largest, _ = jax.lax.top_k(normal[1], 2)
  return {
      'normal': normal,
      'uniform': uniform,
      'whole': jax.random.randint(key, (4,), 0, 9),
      'behind': jax.random.uniform(key, (2,)) + largest,
      'none': jnp.arange(3),
  }


def _count(jaxpr, counts=None):
  """Returns how often each operation is called, also within others."""
  counts = collections.Counter() if counts is None else counts
  for eqn in jaxpr.eqns:
    counts[eqn.primitive.name] += 1
    if 'jaxpr' in eqn.params:
      _count(eqn.params['jaxpr'].jaxpr, counts)
  return counts


def test_like_draws_are_one_and_give_what_they_gave():
  joined = joined_draws.joined(jax.jit(_several).trace())
  found, expected = joined(), _several()
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  jax.tree.map(
      lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6),
      found,
      expected,
  )
  # Six keys and two; normals of three shapes, uniforms behind those and not,
  # integers, which take two draws by keys of a split.
  before = _count(jax.jit(_several).trace().jaxpr.jaxpr)
  counts = _count(jax.jit(joined).trace().jaxpr.jaxpr)
  assert before['random_fold_in'] == 8 and counts['random_fold_in'] == 2
  assert before['random_bits'] == 11 and counts['random_bits'] == 7


def test_of_another_generator_each_draw_stays():
  several = functools.partial(_several, 'rbg')
  joined = joined_draws.joined(jax.jit(several).trace())
  jax.tree.map(np.testing.assert_array_equal, joined(), several())


@pytest.mark.parametrize('remat', ['none', 'blocks'])
def test_the_parameters_of_a_model_are_those_that_flax_draws(remat):
  model = create_model(
      'retention_compact',
      num_classes=3,
      remat=remat,
      widths=(8, 16),
      depths=(1, 1),
      num_heads=(2, 2),
      mlp_ratios=(2.0, 2.0),
      layer_scale=(1e-2, 1e-2),
      decay_ranges=(4.0, 4.0),
  )

  def create():
    return state_lib.create(
        model, optax.adamw(1e-3), jax.random.key(1), (16, 16, 3), ema=True
    )

  traced = jax.jit(create).trace()
  options = mesh.quick_compilation()
  expected = jax.jit(create, compiler_options=options)()
  found = jax.jit(joined_draws.joined(traced), compiler_options=options)()
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  # Of the last bit of a number drawn with a deviation of up to 0.2.
  jax.tree.map(
      lambda one, other: np.testing.assert_allclose(one, other, atol=3e-8),
      found,
      expected,
  )
  counts = _count(traced.jaxpr.jaxpr)
  joined = _count(jax.jit(joined_draws.joined(traced)).trace().jaxpr.jaxpr)
  assert counts['random_fold_in'] > 20 and joined['random_fold_in'] == 1
  assert joined['random_bits'] < counts['random_bits']
