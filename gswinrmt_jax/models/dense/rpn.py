"""Region proposal network (Ren et al., 2015): where an object may be."""

from collections.abc import Sequence
import functools

from flax import linen as nn
from flax.typing import Dtype
import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gswinrmt_jax import ops
from gswinrmt_jax.models.dense import dense_boxes
from gswinrmt_jax.models.dense.dense_boxes import DenseBoxes
from gswinrmt_jax.models.layers import Conv
from gswinrmt_jax.ops import anchors, nms, padding
from gswinrmt_jax.ops.assignment import Rule

RULE = Rule(positive=0.7, negative=0.3, low_quality=0.3)
_OVERLAP = 0.7  # IoU above which the worse of two proposals is dropped
_normal = nn.initializers.normal(0.01)


class RPN(nn.Module):
  """A convolution with ReLU, and 1x1 convolutions to logits and deltas.

  Attributes:
    channels: Channels of the convolution.
    dtype: Computation dtype; outputs are at least float32.
  """

  channels: int
  dtype: Dtype

  def setup(self):
    """Creates the layers, which all levels share."""
    wide = ops.wide_dtype(self.dtype)
    self.conv = Conv(self.channels, 3, self.dtype, _normal)
    self.logits = Conv(len(anchors.RATIOS), 1, wide, _normal)
    self.deltas = Conv(len(anchors.RATIOS) * 4, 1, wide, _normal)

  def __call__(
      self,
      levels: Sequence[Float[Array, 'b _ _ c']],
      grid: anchors.AnchorGrid,
      extents: padding.Extents,
  ) -> DenseBoxes:
    """Returns one logit, and deltas, of each anchor."""
    found = []
    for x, stride in zip(levels, grid.strides, strict=True):
      x = jax.nn.relu(self.conv(x, padding.strided(extents, stride)))
      found.append((self.logits(x), self.deltas(x)))
    return dense_boxes.dense_boxes(found, grid, extents)


def propose(
    found: DenseBoxes,
    grid: anchors.AnchorGrid,
    sizes: Int[Array, 'b 2'],
    *,
    candidates: int,
    limit: int,
) -> tuple[Float[Array, 'b p 4'], Float[Array, 'b p']]:
  """Returns the best boxes after suppression within each level.

  Args:
    found: What the network predicts.
    grid: Its anchors.
    sizes: Height and width of each image, in pixels.
    candidates: Anchors of a level that compete.
    limit: Number of boxes of an image.

  Returns:
    Boxes without gradient, best first, and their probabilities; those of unused
    rows, at the end, are 0.
  """
  boxes, scores = dense_boxes.candidates(found, grid, sizes, candidates)
  scores = scores[..., 0]  # of the only class
  keep = functools.partial(nms.suppress, threshold=_OVERLAP)
  scores *= jax.vmap(jax.vmap(keep))(boxes, scores > 0)
  batch = sizes.shape[0]
  boxes, scores = boxes.reshape(batch, -1, 4), scores.reshape(batch, -1)
  scores, order = lax.top_k(scores, min(limit, scores.shape[1]))
  boxes = jnp.take_along_axis(boxes, order[..., None], 1)
  return lax.stop_gradient(boxes), lax.stop_gradient(scores)
