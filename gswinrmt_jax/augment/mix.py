"""Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019) and smoothed targets."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Integer, PRNGKeyArray

from gswinrmt_jax.ops import pairs


def smooth_targets(
    label: Integer[Array, ' b'], *, num_classes: int, smoothing: float
) -> Float32[Array, 'b k']:
  """Returns one-hot targets mixed with the uniform distribution.

      target = (1 - smoothing) onehot(label) + smoothing / k

  Args:
    label: Class of each image.
    num_classes: Number of classes, k.
    smoothing: Weight of the uniform distribution.

  Returns:
    Targets that sum to 1.
  """
  off = smoothing / num_classes
  on = 1.0 - smoothing + off
  hit = label[:, None] == jnp.arange(num_classes)[None]
  return jnp.where(hit, on, off).astype(jnp.float32)


def draw_lambda(
    key: PRNGKeyArray, *, mixup_alpha: float, cutmix_alpha: float
) -> tuple[Float32[Array, ''], Bool[Array, '']]:
  """Draws `lambda ~ Beta(alpha, alpha)` for the batch, and which mixing it is.

  Args:
    key: Source of the draws.
    mixup_alpha: Alpha of Mixup; 0 turns Mixup off.
    cutmix_alpha: Alpha of CutMix; 0 turns CutMix off. One of them is not 0.

  Returns:
    Share of the image itself, and whether it is CutMix: at even odds, or always
    or never where only one is on.
  """
  coin_key, beta_key = jax.random.split(key)
  if mixup_alpha and cutmix_alpha:
    cut = jax.random.uniform(coin_key, dtype=jnp.float32) < 0.5
    alpha = jnp.where(cut, cutmix_alpha, mixup_alpha).astype(jnp.float32)
  else:
    cut = jnp.array(bool(cutmix_alpha))
    alpha = jnp.array(mixup_alpha or cutmix_alpha, jnp.float32)
  return jax.random.beta(beta_key, alpha, alpha, dtype=jnp.float32), cut


def cutmix_mask(
    key: PRNGKeyArray, share: Float32[Array, ''], *, height: int, width: int
) -> Bool[Array, 'h w']:
  """Draws the box that is cut out, of sides `sqrt(1 - share)` of the image's.

  The centre is uniform over the image. Sides are rounded down to even numbers
  and what sticks out is cut off, so the box is often smaller than 1 - share.

  Args:
    key: Source of the draws.
    share: Share of the area that should stay.
    height: Rows of the image.
    width: Columns of the image.

  Returns:
    True inside the box.
  """
  ratio = jnp.sqrt(1.0 - share)
  row_key, column_key = jax.random.split(key)

  def inside(key, side):
    half = (side * ratio).astype(jnp.int32) // 2
    centre = jax.random.randint(key, (), 0, side, dtype=jnp.int32)
    place = jnp.arange(side, dtype=jnp.int32)
    return (place >= centre - half) & (place < centre + half)

  rows, columns = inside(row_key, height), inside(column_key, width)
  return rows[:, None] & columns[None]


def blend(
    values: Float32[Array, 'b ...'], weight: Float32[Array, '...']
) -> Float32[Array, 'b ...']:
  """Returns `(1 - weight) values + weight partner's`, images or targets.

  Args:
    values: Of each image; the partner of one is its neighbour in the batch.
    weight: Of the partner; broadcast against the values.
  """
  return values * (1.0 - weight) + pairs.partner(values) * weight


def mix(
    key: PRNGKeyArray,
    image: Float32[Array, 'b h w c'],
    target: Float32[Array, 'b k'],
    *,
    mixup_alpha: float,
    cutmix_alpha: float,
) -> tuple[Float32[Array, 'b h w c'], Float32[Array, 'b k']]:
  """Mixes every image with its neighbour, by Mixup or by CutMix.

      Mixup:   out = lambda image + (1 - lambda) partner
      CutMix:  out = partner inside the box, image outside

  and `target = lambda target + (1 - lambda) partner's`. There is one lambda,
  one box and one choice for the whole batch. For CutMix the lambda of the
  targets is the share of pixels that really stayed.

  Args:
    key: Source of the draws.
    image: The images.
    target: Their targets.
    mixup_alpha: Alpha of Mixup; 0 turns Mixup off.
    cutmix_alpha: Alpha of CutMix; 0 turns CutMix off.

  Returns:
    Mixed images and targets; both unchanged where both alphas are 0.
  """
  if not mixup_alpha and not cutmix_alpha:
    return image, target
  _, height, width, _ = image.shape
  draw_key, box_key = jax.random.split(key)
  share, cut = draw_lambda(
      draw_key, mixup_alpha=mixup_alpha, cutmix_alpha=cutmix_alpha
  )
  box = cutmix_mask(box_key, share, height=height, width=width)
  # Weight of the partner at every pixel: the box, or the same everywhere.
  weight = jnp.where(cut, box.astype(jnp.float32), 1.0 - share)
  taken = jnp.where(cut, box.mean(dtype=jnp.float32), 1.0 - share)
  return blend(image, weight[None, :, :, None]), blend(target, taken)
