"""Boxes: area, overlap, clipping, and the coder that regresses them.

A box is `x0 y0 x1 y1` in pixels, with real numbers as corners: its area is
`(x1 - x0) (y1 - y0)`. Functions of two boxes broadcast over the leading axes.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

# Decoding limits how much larger than its box a decoded one is. The factor
# 1000 / 16 is that of Detectron and mmdetection.
_LARGEST_LOG_RATIO = math.log(1000 / 16)
_EPSILON = 1e-6  # least area that is divided by, in square pixels

Boxes = Float[Array, '*#b 4']


def area(boxes: Boxes) -> Float[Array, '...']:
  """Returns the area of each box."""
  return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def is_empty(boxes: Boxes) -> Array:
  """Returns which boxes have no width or no height."""
  return (boxes[..., 2:] <= boxes[..., :2]).any(-1)


def clip(boxes: Boxes, size: Num[Array, '*#b 2']) -> Boxes:
  """Clips boxes to images of `size`, height and width in pixels."""
  limit = jnp.concatenate([size[..., ::-1]] * 2, -1).astype(boxes.dtype)
  return jnp.clip(boxes, 0, limit)


def _overlap(a, b):
  """Returns areas of the intersection and of the union."""
  low = jnp.maximum(a[..., :2], b[..., :2])
  high = jnp.minimum(a[..., 2:], b[..., 2:])
  shared = (high - low).clip(0).prod(-1)
  return shared, (area(a) + area(b) - shared).clip(_EPSILON)


def iou(a: Boxes, b: Boxes) -> Float[Array, '...']:
  """Returns the intersection over union, `|a & b| / |a | b|`."""
  shared, union = _overlap(a, b)
  return shared / union


def giou(a: Boxes, b: Boxes) -> Float[Array, '...']:
  """Returns the generalised IoU (Rezatofighi et al., 2019).

      giou = iou - (|hull| - |a | b|) / |hull|

  The hull is the smallest box around both. Unlike the IoU, this has a gradient
  where the boxes do not overlap.
  """
  shared, union = _overlap(a, b)
  low = jnp.minimum(a[..., :2], b[..., :2])
  high = jnp.maximum(a[..., 2:], b[..., 2:])
  hull = (high - low).clip(0).prod(-1).clip(_EPSILON)
  return shared / union - (hull - union) / hull


def _centres_and_sizes(boxes):
  low, high = boxes[..., :2], boxes[..., 2:]
  return (low + high) / 2, high - low


def encode(boxes: Boxes, truth: Boxes, stds: tuple[float, ...]) -> Boxes:
  """Returns the deltas by which `decode` turns boxes into `truth`.

      ((c' - c) / s, log(s' / s)) / stds

  along each axis, with centre c and size s of a box, c' and s' of its truth
  (Girshick et al., 2014, appendix C).

  Args:
    boxes: Anchors or proposals, not empty.
    truth: The boxes to be found, not empty.
    stds: What each of the four deltas is divided by.
  """
  centre, size = _centres_and_sizes(boxes)
  wanted_centre, wanted_size = _centres_and_sizes(truth)
  shift = (wanted_centre - centre) / size
  deltas = jnp.concatenate([shift, jnp.log(wanted_size / size)], -1)
  return deltas / _vector(stds, deltas)


def decode(boxes: Boxes, deltas: Boxes, stds: tuple[float, ...]) -> Boxes:
  """Returns the boxes that the deltas describe, the inverse of `encode`.

  The logarithm of a size ratio is limited to `+-log(1000 / 16)`.

  Args:
    boxes: Anchors or proposals.
    deltas: Shift of the centre and log ratio of the size, divided by `stds`.
    stds: What each of the four deltas is multiplied by.
  """
  centre, size = _centres_and_sizes(boxes)
  deltas = deltas * _vector(stds, deltas)
  centre = centre + size * deltas[..., :2]
  ratio = deltas[..., 2:].clip(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
  half = size * jnp.exp(ratio) / 2
  return jnp.concatenate([centre - half, centre + half], -1)


def _vector(values, like):
  """Returns the four values with the rank and dtype of an array."""
  vector = jnp.asarray(values, like.dtype)
  return jnp.expand_dims(vector, range(like.ndim - 1))
