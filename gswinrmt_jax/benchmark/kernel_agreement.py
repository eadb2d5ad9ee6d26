"""Whether a model with kernels of our own is the model: before it is timed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gswinrmt_jax.benchmark import variables
from gswinrmt_jax.models.backbone import Backbone

# Windows beside and above each other, with and without shift and padding, and
# lines of odd numbers of tokens all take part at this size.
_IMAGE = (72, 136, 3)
_BATCH = 2
_TOLERANCE = 1e-4  # in float32; between two forms of XLA 4e-6
_AS_ROUNDED = 1.5  # in the model's dtype: times the error of XLA's forms


def check(model: Backbone) -> None:
  """Compares it with the same model without, on the device that JAX has.

  The loss and its gradients, with the statistics of the batch and without
  stochastic depth: in float32, and in the model's dtype, where those of XLA's
  forms differ from float32, too. Errors are `|a - b| / |b|`, Euclidean, of the
  gradient of each parameter in float32, of all together else.

  Raises:
    ValueError: If they differ.
  """
  arch = dataclasses.replace(model.arch, drop_path_rate=0.0)
  model = model.clone(arch=arch)
  arch = dataclasses.replace(arch, attention_impl='auto', ffn_impl='xla')
  plain = model.clone(arch=arch)
  values = variables.random_variables(plain, _IMAGE)
  exact = _gradients(plain, values, np.float32)
  norms = jax.tree.map(np.linalg.norm, exact)
  # Where a gradient is zero, such as a bias's in front of a norm, it is noise.
  least = 1e-3 * max(jax.tree.leaves(norms))
  found = _gradients(model, values, np.float32)
  for (path, norm), ours, other in zip(
      jax.tree.leaves_with_path(norms),
      *map(jax.tree.leaves, (found, exact)),
      strict=True,
  ):
    error = np.linalg.norm(ours - other) / max(norm, least)
    _compare(f'{jax.tree_util.keystr(path)} in float32', error, _TOLERANCE)
  rounded, found = (
      _error(_gradients(each, values, model.dtype), exact)
      for each in (plain, model)
  )
  limit = max(_AS_ROUNDED * rounded, _TOLERANCE)
  _compare(f'all gradients in {jnp.dtype(model.dtype)}', found, limit)


def _compare(what, error, limit):
  if not error <= limit:
    raise ValueError(
        f'kernels of our own compute another model: {what}: error {error:.2g}, '
        f'at most {limit:.2g}'
    )


def _error(found, exact):
  difference = jax.tree.map(np.subtract, found, exact)
  return float(optax.tree.norm(difference) / optax.tree.norm(exact))


def _gradients(model, values, dtype):
  """Returns the loss and the gradient of each parameter, float64."""
  model = model.clone(dtype=jnp.dtype(dtype))
  rng = np.random.default_rng(1)
  image = rng.standard_normal((_BATCH, *_IMAGE), np.float32)
  target = rng.dirichlet(np.ones(model.num_classes), _BATCH).astype('float32')

  def loss(params, image):
    logits, _ = model.apply(
        {**values, 'params': params}, image, train=True, mutable=['batch_stats']
    )
    return -(jax.nn.log_softmax(logits) * target).sum()

  with jax.default_matmul_precision('highest'):
    compiled = jax.jit(jax.value_and_grad(loss))
    value, gradient = compiled(values['params'], image)
  return jax.tree.map(np.float64, {'loss': value, 'gradient of': gradient})
