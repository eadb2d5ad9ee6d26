"""Tests that segmenters give padded images the output of the bare ones."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax import ops
from gswinrmt_jax.models.dense.segmenter import create_segmenter

_TINY = {
    'num_classes': 3,
    'channels': 8,
    'dropout_rate': 0.0,
    'widths': (8, 8, 12, 16),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 2, 3, 4),
    'drop_path_rate': 0.0,
}
_FPN = {'head': 'fpn', 'neck_channels': 6, 'auxiliary_channels': 4}
_UPER = {'head': 'uper', 'auxiliary_channels': 4}
_SIDE = 128


def _model(**fields):
  return create_segmenter('rmt_t', **_TINY | fields)


def _images(*sizes):
  rng = np.random.default_rng(sum(map(sum, sizes)))
  return [rng.normal(size=(*size, 3)).astype(np.float32) for size in sizes]


def test_a_padded_image_gives_what_it_gives_by_itself():
  """Two batches share one compilation; values themselves: `dense_test`.

  How UperNet resamples and convolves padded maps is tested below.
  """
  model = _model(**_FPN, num_classes=1)
  variables = random_variables.nested(model, (1, _SIDE, _SIDE, 3))

  @jax.jit
  def run(x, extents=None):
    apply = functools.partial(
        model.apply, variables, x, train=False, extents=extents
    )
    both = apply(method='logits_and_auxiliary')
    return both if extents is None else (apply(), both)

  # On the last map, 33 rows are two and 32 columns are one.
  first, second, other = _images((33, 32), (33, 32), (97, 71))
  bare = jax.device_get(run(jnp.stack([first, second])))
  for row, images in enumerate([(first, other), (other, second)]):
    padded = random_variables.padded(images, _SIDE, np.random.default_rng(7))
    alone, found = jax.device_get(run(*padded))
    np.testing.assert_allclose(alone, found[0], rtol=0, atol=1e-5)
    for got, want in zip(found, bare, strict=True):
      error = np.abs(got[row, :33, :32] - want[row]).max()
      assert error < 1e-5 * np.abs(want[row]).max()
  assert run._cache_size() == 2  # without extents, and with them


def _resized(x, height, width, rule):
  """Resamples `[b h w c]` along both axes, one row or column at a time."""
  for axis, size in ((1, height), (2, width)):
    x = np.stack([rule(x, axis, i, size) for i in range(size)], axis)
  return x


def _nearest(x, axis, i, size):
  return x.take(math.floor(i * x.shape[axis] / size), axis)


def _bilinear(x, axis, i, size):
  """Interpolates between pixel centres; repeats the border outside them."""
  last = x.shape[axis] - 1
  place = min(max((i + 0.5) * (last + 1) / size - 0.5, 0.0), last)
  low = math.floor(place)
  share = place - low
  high = min(low + 1, last)
  return (1 - share) * x.take(low, axis) + share * x.take(high, axis)


def _pooled(x, axis, i, bins):
  extent = x.shape[axis]
  start, end = math.floor(i * extent / bins), math.ceil((i + 1) * extent / bins)
  return x.take(range(start, end), axis).mean(axis)


def test_resampling_by_extents():
  """50 maps, padded with noise, each with its own source and target size."""
  rng = np.random.default_rng(3)
  x = rng.normal(size=(50, 23, 29, 2)).astype(np.float32)
  extents = rng.integers(1, (24, 30), (50, 2))
  target = rng.integers(1, (42, 38), (50, 2))
  cases = [
      (ops.resize_nearest(x, extents, target, size=(41, 37)), _nearest, None),
      (ops.resize_bilinear(x, extents, target, size=(41, 37)), _bilinear, None),
  ]
  for bins in (1, 2, 3, 6):
    y = ops.adaptive_average_pool(x, extents, bins=bins)
    cases.append((y, _pooled, (bins, bins)))
  for got, rule, bins in jax.device_get(cases):
    for image, y, (h, w), size in zip(x, got, extents, target, strict=True):
      height, width = bins or size
      bare = image[None, :h, :w].astype(float)
      want = _resized(bare, height, width, rule)
      np.testing.assert_allclose(
          y[None, :height, :width],
          want,
          rtol=0,
          atol=1e-5,
          err_msg=rule.__name__,
      )


# Size of the images, and the maps of their padded size, 64 x 96 pixels.
_VALID, _MAPS = (37, 60), ((16, 24), (8, 12), (4, 6), (2, 3))


def _heads(head):
  """Returns a segmenter, its variables, and maps and extents of two images."""
  model = _model(**head)
  shapes = [
      (2, *size, width)
      for size, width in zip(_MAPS, model.arch.widths, strict=True)
  ]
  maps = [random_variables.image(shape) for shape in shapes]

  def start(model, maps):
    return [part(maps, train=False) for part in (model.decode, model.auxiliary)]

  init = functools.partial(model.init, method=start)
  variables = random_variables.of_shapes(
      jax.eval_shape(init, jax.random.key(0), maps)
  )
  return model, variables, maps, jnp.array([_VALID] * 2)


def _bare(maps):
  sides = [[-(-side // stride) for side in _VALID] for stride in (4, 8, 16, 32)]
  return [x[:, :h, :w] for x, (h, w) in zip(maps, sides, strict=True)]


def _trained(model, variables, maps, extents=None):
  """Returns logits and auxiliary logits of the maps, and BN's statistics."""

  def both(model, maps):
    options = {'train': True, 'extents': extents}
    logits = model.decode(maps, **options)
    auxiliary = model.auxiliary(maps, **options)
    return logits[:, :10, :15], auxiliary[:, :3, :4]

  return model.apply(variables, maps, method=both, mutable=['batch_stats'])


@pytest.mark.parametrize(
    'head', [pytest.param(_FPN, marks=pytest.mark.slow), _UPER]
)
def test_gradients_and_statistics_of_training(head):
  model, variables, maps, extents = _heads(head)

  @jax.jit
  def run(variables, maps, extents):
    def loss(params, maps):
      found = _trained(model, {**variables, 'params': params}, maps, extents)
      return sum(jnp.square(y - 1).sum() for y in found[0]), found

    grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    return grad(variables['params'], maps)

  padded = run(variables, maps, extents)
  bare = run(variables, _bare(maps), None)
  value, (params, grad_maps) = jax.device_get(padded)
  want, (want_params, want_maps) = jax.device_get(bare)
  for got, each in zip(grad_maps, want_maps, strict=True):
    _, height, width, _ = each.shape
    assert not got[:, height:].any() and not got[:, :, width:].any()
  got = value, params, _bare(grad_maps)

  def check(a, b):
    assert np.abs(a - b).max() <= 1e-5 * max(1, np.abs(b).max())

  jax.tree.map(check, got, (want, want_params, want_maps))
