"""Label maps: dense targets that follow the crop and flip of an image.

For each cell of a coarse grid over the whole image, a teacher gives the top few
classes and their probabilities. ROI-align (He et al. 2017) crops that map, and
flips it if the image is flipped, as in ReLabel (Yun et al. 2021) and LV-ViT
(Jiang et al. 2021). The result is the target of the augmented image.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Integer

from gswinrmt_jax.errors import UserError


def extents(image_size: tuple[int, int], stride: int) -> tuple[int, int]:
  """Returns the height and width of a model's last feature map, in tokens.

  `stride` is the side of a token in pixels.

  Raises:
    UserError: If a side is not a multiple of `stride`: the last tokens would
      extend beyond the image and none would align with the cells of the map.
  """
  height, width = image_size
  if height % stride or width % stride:
    raise UserError(
        f'images of {width} x {height} pixels are not a whole number of '
        f'tokens, which label maps need: take multiples of {stride}'
    )
  return height // stride, width // stride


def spread(
    index: Integer[Array, 'b s t m'],
    score: Float[Array, 'b s t m'],
    *,
    num_classes: int,
) -> Float32[Array, 'b s t k']:
  """Returns the distribution over all classes from the top `m`.

      q[m] = score[m] / max(1, sum_m score[m])
      p[c] = sum_m q[m] [index[m] = c] + (1 - sum_m q[m]) / k

  The probability that the top classes leave is spread evenly over all classes.
  Nothing is left if rounding brought the sum of the scores above 1.
  """
  score = score.astype(jnp.float32)
  score /= jnp.maximum(score.sum(3, keepdims=True), 1.0)
  classes = jnp.arange(num_classes, dtype=jnp.int32)[None, None, None, None]
  named = index.astype(jnp.int32)[..., None] == classes
  found = jnp.where(named, score[..., None], 0.0).sum(3)
  # Rounding in the division must not make it negative.
  rest = jnp.maximum(1.0 - score.sum(3, keepdims=True), 0.0)
  return found + rest / num_classes


def axis_weights(
    start: Float32[Array, ' b'],
    length: Float32[Array, ' b'],
    *,
    size: int,
    count: int,
) -> Float32[Array, 'b count size']:
  """Returns weights that resample `size` cells to the `count` cells of a crop.

  Each cell of the crop is the mean of `n = ceil(size / count)` evenly spaced
  points. Each point is interpolated between the centres of two cells:

      p[i, j] = size (start + length (i + (j + 1/2) / n) / count) - 1/2
      w[i, q] = mean_j max(0, 1 - |clip(p[i, j], 0, size - 1) - q|)

  The weights sum to 1 over `size`. `start` and `length` of the crop are shares
  of the axis.
  """
  points = -(-size // count)
  inside = (jnp.arange(count * points, dtype=jnp.float32) + 0.5) / points
  place = start[:, None] + length[:, None] * inside[None] / count
  place = jnp.clip(size * place - 0.5, 0, size - 1)
  cell = jnp.arange(size, dtype=jnp.float32)[None, None]
  weight = jnp.maximum(0.0, 1.0 - jnp.abs(place[:, :, None] - cell))
  return weight.reshape(len(start), count, points, size).mean(2)


def align(
    whole: Float32[Array, 'b s t k'],
    box: Float32[Array, 'b 4'],
    flipped: Bool[Array, ' b'],
    *,
    extents: tuple[int, int],
) -> Float32[Array, 'b h w k']:
  """Returns the map of each image's crop, flipped where the image is.

      out[i, j] = sum_qr rows[i, q] columns[j', r] whole[q, r]

  with `j' = w - 1 - j` where flipped. The crop precedes the flip. `box` has the
  crop's top, left, height and width, as shares of the image; `extents` are the
  rows and columns of the result.
  """
  top, left, height, width = box.T
  rows = axis_weights(top, height, size=whole.shape[1], count=extents[0])
  columns = axis_weights(left, width, size=whole.shape[2], count=extents[1])
  columns = jnp.where(flipped[:, None, None], columns[:, ::-1], columns)
  return jnp.einsum(
      'bhs,bwt,bstk->bhwk', rows, columns, whole, precision='highest'
  )


def targets(
    whole: Float32[Array, 'b s t k'],
    box: Float32[Array, 'b 4'],
    flipped: Bool[Array, ' b'],
    *,
    extents: tuple[int, int],
    smoothing: float,
) -> tuple[Float32[Array, 'b k'], Float32[Array, 'b h w k']]:
  """Returns soft targets for class and dense logits: `(1 - e) p + e / k`.

  The class target is the crop of the map, averaged to one cell. It replaces the
  label, which may not be visible in the crop.

  Arguments are as in `align`; `extents` is the size of the model's last feature
  map, and `smoothing` the weight `e` of the uniform distribution.
  """
  image = align(whole, box, flipped, extents=(1, 1))[:, 0, 0]
  tokens = align(whole, box, flipped, extents=extents)
  uniform = smoothing / whole.shape[-1]
  return (
      (1.0 - smoothing) * image + uniform,
      (1.0 - smoothing) * tokens + uniform,
  )
