"""Label smoothing, and the mixing of neighbours in a batch.

Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) mix images. MixToken
(Jiang et al. 2021) swaps a box of tokens inside the model, see
`models.backbone.Backbone.class_and_dense_logits`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Integer, PRNGKeyArray

from gswinrmt_jax.ops import image_pairs


def smooth_targets(
    label: Integer[Array, ' b'], *, num_classes: int, smoothing: float
) -> Float32[Array, 'b k']:
  """Returns `(1 - smoothing) onehot(label) + smoothing / num_classes`."""
  off = smoothing / num_classes
  on = 1.0 - smoothing + off
  hit = label[:, None] == jnp.arange(num_classes)[None]
  return jnp.where(hit, on, off).astype(jnp.float32)


def mix(
    key: PRNGKeyArray,
    image: Float32[Array, 'b h w c'],
    target: Float32[Array, 'b k'],
    *,
    mixup_alpha: float,
    cutmix_alpha: float,
    prob: float = 1.0,
    allowed: bool | Bool[Array, ''] = True,
) -> tuple[Float32[Array, 'b h w c'], Float32[Array, 'b k']]:
  """Mixes every image with its neighbour, by Mixup or CutMix.

      Mixup:   out = lambda image + (1 - lambda) partner
      CutMix:  out = partner inside the box, image outside
      target = lambda target + (1 - lambda) partner's target

  The whole batch shares the choice of method, lambda and the box. For CutMix,
  the lambda of the targets is the share of pixels actually kept.

  An alpha of 0 turns its method off. The batch is mixed with probability
  `prob`, unless `allowed` is False.
  """
  if not prob or not (mixup_alpha or cutmix_alpha):
    return image, target
  _, height, width, _ = image.shape
  draw_key, box_key = jax.random.split(key)
  share, cut = draw_lambda(
      draw_key, mixup_alpha=mixup_alpha, cutmix_alpha=cutmix_alpha
  )
  if prob < 1:  # a separate stream: the other draws do not change
    coin = jax.random.uniform(jax.random.fold_in(key, 2), dtype=jnp.float32)
    allowed = allowed & (coin < prob)
  # Lambda 1 keeps the images: the box of CutMix is then empty.
  share = jnp.where(allowed, share, 1.0)
  box = cutmix_box(box_key, share, height=height, width=width)
  pixel_weight = jnp.where(cut, box.astype(jnp.float32), 1.0 - share)
  target_weight = jnp.where(cut, box.mean(dtype=jnp.float32), 1.0 - share)
  image = blend_with_partner(image, pixel_weight[None, :, :, None])
  return image, blend_with_partner(target, target_weight)


def draw_lambda(
    key: PRNGKeyArray, *, mixup_alpha: float, cutmix_alpha: float
) -> tuple[Float32[Array, ''], Bool[Array, '']]:
  """Draws `lambda ~ Beta(alpha, alpha)`, and Mixup or CutMix for the batch.

  An alpha of 0 turns its method off; not both may be 0.

  Returns:
    Lambda, the weight of the image itself, and True for CutMix, which has
    probability 1/2 if both are on.
  """
  coin_key, beta_key = jax.random.split(key)
  if mixup_alpha and cutmix_alpha:
    cut = jax.random.uniform(coin_key, dtype=jnp.float32) < 0.5
    alpha = jnp.where(cut, cutmix_alpha, mixup_alpha).astype(jnp.float32)
  else:
    cut = jnp.array(bool(cutmix_alpha))
    alpha = jnp.array(mixup_alpha or cutmix_alpha, jnp.float32)
  return jax.random.beta(beta_key, alpha, alpha, dtype=jnp.float32), cut


def cutmix_box(
    key: PRNGKeyArray, share: Float32[Array, ''], *, height: int, width: int
) -> Bool[Array, 'h w']:
  """Draws a box, True inside, whose sides are `sqrt(1 - share)` of the image's.

  The centre is uniform over the image. Sides are rounded down to even numbers,
  and the box is clipped to the image: it often covers less than `1 - share`.
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


def token_box(
    key: PRNGKeyArray, *, height: int, width: int
) -> Bool[Array, 'h w']:
  """Draws MixToken's box, the `cutmix_box` of a `lambda ~ Beta(1, 1)`.

  It is True for the tokens of the model's last feature map that each image
  takes from its partner.
  """
  share_key, box_key = jax.random.split(key)
  share, _ = draw_lambda(share_key, mixup_alpha=0.0, cutmix_alpha=1.0)
  return cutmix_box(box_key, share, height=height, width=width)


def blend_with_partner(
    values: Float32[Array, 'b ...'], weight: Float32[Array, '...']
) -> Float32[Array, 'b ...']:
  """Returns `(1 - weight) values + weight partner's values`.

  Partners are neighbours in the batch. For targets after MixToken, the weight
  is the box's share of the tokens.
  """
  return values * (1.0 - weight) + image_pairs.partner(values) * weight
