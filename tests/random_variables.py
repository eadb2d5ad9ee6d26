"""Random variables, none with a neutral value such as a scale of 1.

NumPy generates them from the path alone, so they are the same in every version
of JAX, and in two models that share a parameter.
"""

import zlib

from flax import traverse_util
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.models import factory


def flat(model, image_shape):
  """Returns `{path: float32 array}` for images of `[b, h, w, 3]`."""
  return _drawn(factory.variable_shapes(model, image_shape[1:]))


def nested(model, image_shape):
  """Returns the variables of `flat` as the tree that `model.apply` takes."""
  return of_shapes(factory.variable_shapes(model, image_shape[1:]))


def of_shapes(shapes):
  """Returns such variables for a tree of shapes, as `jax.eval_shape` has."""
  arrays = {path: jnp.asarray(x) for path, x in _drawn(shapes).items()}
  return traverse_util.unflatten_dict(arrays, sep='/')


def _drawn(shapes):
  return {
      path: _leaf(path, leaf.shape).astype(np.float32)
      for path, leaf in traverse_util.flatten_dict(shapes, sep='/').items()
  }


def image(shape):
  """Returns a fixed batch of normally distributed images, float32."""
  rng = np.random.default_rng(zlib.crc32(repr(shape).encode()))
  return jnp.asarray(rng.normal(size=shape), jnp.float32)


def padded(images, side, rng):
  """Returns noise with images in the upper left corners, and their extents."""
  batch = rng.normal(size=(len(images), side, side, 3)).astype(np.float32)
  for row, image in zip(batch, images, strict=True):
    row[: image.shape[0], : image.shape[1]] = image
  extents = np.array([image.shape[:2] for image in images], np.int32)
  return jnp.asarray(batch), jnp.asarray(extents)


def _leaf(path, shape):
  """Returns a random parameter that keeps activations of order one."""
  rng = np.random.default_rng(zlib.crc32(path.encode()))
  noise = rng.normal(size=shape)
  leaf = path.rpartition('/')[2]
  if leaf == 'kernel':  # less for convolutions: residual branches, smooth maps
    gain = 1.0 if len(shape) == 2 else 0.6
    return gain * noise / np.sqrt(np.prod(shape[:-1]))
  if leaf in ('bias', 'mean'):
    return 0.3 * noise
  if leaf == 'var':
    return rng.uniform(0.5, 1.5, shape)
  if leaf == 'decay_logit':
    return 1.0 + noise
  if leaf == 'scale':
    return 1.0 + 0.3 * noise
  if leaf in ('attention_scale', 'ffn_scale'):
    return 0.5 + 0.2 * noise
  raise ValueError(f'no rule for {path}: add one to {__file__}')
