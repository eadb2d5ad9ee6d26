"""Whether a model with kernels of our own is the model: before it is timed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.benchmark import variables
from gswinrmt_jax.models.backbone import Backbone

# Windows, shifts and odd extents all take part at this size.
_IMAGE = (72, 56, 3)
_BATCH = 2
_TOLERANCE = 5e-4  # of the largest number of an array, and of the loss


def check(model: Backbone) -> None:
  """Compares it with the same model without, on the device that JAX has.

  The loss and its gradients in float32, with the statistics of the batch and
  without stochastic depth.

  Raises:
    ValueError: If they differ; names the first parameter whose gradient does.
  """
  arch = dataclasses.replace(model.arch, drop_path_rate=0.0)
  model = model.clone(arch=arch, dtype=jnp.dtype('float32'))
  arch = dataclasses.replace(arch, attention_impl='auto', ffn_impl='xla')
  plain = model.clone(arch=arch)
  values = variables.random_variables(plain, _IMAGE)
  rng = np.random.default_rng(1)
  image = rng.standard_normal((_BATCH, *_IMAGE), np.float32)
  target = rng.dirichlet(np.ones(model.num_classes), _BATCH).astype('float32')
  with jax.default_matmul_precision('highest'):
    found, expected = (
        _with_gradients(each, values, image, target) for each in (model, plain)
    )
  # Where a gradient is zero, such as a bias's in front of a norm, it is noise.
  least = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) * 1e-3
  for (path, ours), other in zip(
      jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
  ):
    difference = np.abs(ours - other).max()
    if not difference <= _TOLERANCE * max(np.abs(other).max(), least):
      name = jax.tree_util.keystr(path)
      raise ValueError(
          f'kernels of our own compute another model: {name} differs by '
          f'{difference:.2g} of {np.abs(other).max():.2g}'
      )


def _with_gradients(model, values, image, target):
  def loss(params, image):
    logits, _ = model.apply(
        {**values, 'params': params}, image, train=True, mutable=['batch_stats']
    )
    return -(jax.nn.log_softmax(logits) * target).sum()

  compiled = jax.jit(jax.value_and_grad(loss))
  value, gradient = compiled(values['params'], image)
  return jax.tree.map(np.asarray, {'loss': value, 'gradient of': gradient})
