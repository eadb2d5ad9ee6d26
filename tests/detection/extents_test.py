"""Tests that padding, of images and of rows of truth, changes nothing."""

import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax.models.dense.detector import create_detector
from gswinrmt_jax.models.dense.rcnn import CASCADE_STAGES
from gswinrmt_jax.ops.assignment import Truth
from gswinrmt_jax.train import detection_losses

pytestmark = pytest.mark.usefixtures('float64')

_CANVAS = 96, 128
_WIDTHS = 4, 6, 8, 10
_SMALL = {
    'retina': {'tower_channels': 6, 'tower_depth': 1, 'candidates': 30},
    'cascade': {
        'rpn_channels': 6,
        'conv_channels': 5,
        'linear_channels': 8,
        'mask_channels': 4,
        'train_candidates': 10,
        'train_proposals': 8,
        'candidates': 10,
        'proposals': 8,
        'rpn_samples': 40,
        'roi_samples': 8,
    },
}


def _model(head):
  """Returns a detector; a cascade's third stage would repeat the second."""
  model = create_detector(
      'rmt_t',
      head=head,
      num_classes=3,
      channels=6,
      detections=8,
      widths=_WIDTHS,
      num_heads=(1, 1, 1, 1),
      dtype=np.float64,
      **_SMALL[head],
  )
  if head != 'cascade':
    return model
  return model.clone(head=model.head.clone(stages=CASCADE_STAGES[:2]))


def _maps(size, seed):
  """Returns one image's maps of noise."""
  rng = np.random.default_rng(seed)
  return [
      rng.normal(size=(1, -(-size[0] // s), -(-size[1] // s), width))
      for s, width in zip((4, 8, 16, 32), _WIDTHS, strict=True)
  ]


def _padded(maps, seed):
  """Returns the maps in the upper left corners of other noise."""
  canvas = _maps(_CANVAS, seed)
  for whole, x in zip(canvas, maps, strict=True):
    whole[:, : x.shape[1], : x.shape[2]] = x
  return canvas


def _truth(size, rows, seed=0):
  """Returns up to five objects; unused rows contain boxes, too."""
  rng = np.random.default_rng(seed)
  count = rng.integers(0, 6)
  low = rng.uniform(0, 0.6, (5, 2))
  high = (low + rng.uniform(0.1, 0.6, (5, 2))).clip(0, 1)
  boxes = np.concatenate([low, high], -1) * [*size[::-1], *size[::-1]]
  boxes = np.resize(boxes, (rows, 4))
  labels = np.resize(rng.integers(0, 3, 5), rows).astype(np.int32)
  bitmaps = np.resize(rng.integers(0, 2, (5, 12, 12)), (rows, 12, 12))
  truth = Truth(boxes, labels, np.arange(rows) < count, bitmaps, boxes)
  return jax.tree.map(lambda x: jnp.asarray(x)[None], truth)


@functools.cache
def _program(head, gradients):
  """Returns variables, and a function that trains on an image and detects."""
  model = _model(head)
  shapes = jax.eval_shape(
      functools.partial(model.head.init, train=False),
      jax.random.key(0),
      [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in _maps(_CANVAS, 0)],
      jnp.array([_CANVAS]),
  )
  flat = traverse_util.flatten_dict(shapes, sep='/')
  flat = {k: random_variables._leaf(k, x.shape) for k, x in flat.items()}
  variables = traverse_util.unflatten_dict(
      {k: jnp.asarray(x) for k, x in flat.items()}, sep='/'
  )

  @jax.jit
  def run(maps, sizes, extents, truth):
    def loss(params, maps):
      found, updates = model.head.apply(
          variables | {'params': params},
          maps,
          sizes,
          extents,
          train=True,
          truth=truth,
          mutable=['batch_stats'],
      )
      total, parts = detection_losses.detection_loss(model, found, truth)
      return total, (parts, updates)

    found = model.head.apply(variables, maps, sizes, extents, train=False)
    if not gradients:
      return loss(variables['params'], maps), found
    grad = jax.value_and_grad(loss, (0, 1), has_aux=True)
    return grad(variables['params'], maps), found

  return run


def _run(head, maps, size, extents, truth, gradients=True):
  sizes = jnp.array([size])
  extents = sizes if extents else None
  found = jax.device_get(_program(head, gradients)(maps, sizes, extents, truth))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
  return found


def _same(got, want):
  """Compares results; gradients of padding must be 0."""
  (*got, (grads, got_maps)), found = got
  (*want, (want_grads, want_maps)), wanted = want
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
      (got, grads, found),
      (want, want_grads, wanted),
  )
  for a, b in zip(got_maps, want_maps, strict=True):
    padding = [(0, m - n) for m, n in zip(a.shape, b.shape, strict=True)]
    np.testing.assert_allclose(a, np.pad(b, padding), rtol=1e-9, atol=1e-9)


def _random_sizes(count):
  rng = np.random.default_rng(5)
  return rng.integers(33, np.array(_CANVAS) + 1, (count, 2))


@pytest.mark.parametrize(
    ('head', 'size'),
    [
        ('retina', (61, 83)),
        ('retina', (64, 83)),  # maps of the same sizes, of whole rows
        # Has the parts of 'mask', too.
        pytest.param('cascade', (61, 83), marks=pytest.mark.slow),
    ],
)
def test_padding_changes_nothing(head, size):
  """Of the image, and 14 rows of truth instead of 6; once without an object.

  Losses, statistics, gradients and detections are compared.
  """
  counts = []
  for seed in (2, 9, 11):
    maps, truth = _maps(size, seed), _truth(size, 6, seed)
    counts.append(int(truth.valid.sum()))
    want = _run(head, maps, size, False, truth)
    got = _run(head, _padded(maps, 7), size, True, _truth(size, 14, seed))
    assert want[1].scores.any()
    assert want[0][0][1][0]['positives'] or not counts[-1]
    _same(got, want)
  assert min(counts) == 0 < max(counts)


@pytest.mark.parametrize(('head', 'count'), [('retina', 25), ('cascade', 5)])
def test_padding_may_be_anything(head, count):
  """Random sizes in one program, each with two paddings.

  Of a cascade, only losses and detections are compared; its gradients are in
  the slow case above.
  """
  how = {'gradients': head == 'retina'}
  before = _program(head, **how)._cache_size()
  for index, size in enumerate(_random_sizes(count).tolist()):
    maps, truth = _maps(size, index), _truth(size, 14, seed=index)
    found = [
        _run(head, _padded(maps, seed), size, True, truth, **how)
        for seed in (8, 9)
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)
  assert _program(head, **how)._cache_size() <= before + 1
