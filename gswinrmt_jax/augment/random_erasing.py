"""Random Erasing (Zhong et al. 2020): a box of noise over part of an image."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, PRNGKeyArray

# Draws per box: one as high or as wide as the image is rejected.
_ATTEMPTS = 10


def random_erase(
    key: PRNGKeyArray,
    image: Float32[Array, 'b h w c'],
    *,
    prob: float,
    area: tuple[float, float],
    aspect: tuple[float, float],
    fill: str,
) -> Float32[Array, 'b h w c']:
  """Erases a random box of each image.

  A box is erased with probability `prob`. `area` is the range of its share of
  the image, `aspect` that of its height / width. `fill` is 'zeros', or 'noise'
  for a standard normal draw per element: the images are normalised.
  """
  if not prob:
    return image
  batch, height, width, _ = image.shape
  coin_key, box_key, noise_key = jax.random.split(key, 3)
  top, left, rows, columns = random_box(
      box_key, batch, height=height, width=width, area=area, aspect=aspect
  )[:, :, None, None]
  y = jnp.arange(height, dtype=jnp.int32)[None, :, None]
  x = jnp.arange(width, dtype=jnp.int32)[None, None, :]
  coin = jax.random.uniform(coin_key, (batch, 1, 1), dtype=jnp.float32)
  erased = (coin < prob) & (y >= top) & (y < top + rows)
  erased = erased & (x >= left) & (x < left + columns)
  new = 0.0
  if fill == 'noise':
    new = jax.random.normal(noise_key, image.shape, dtype=jnp.float32)
  return jnp.where(erased[..., None], new, image)


def random_box(
    key: PRNGKeyArray,
    batch: int,
    *,
    height: int,
    width: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> Int32[Array, '4 b']:
  """Draws a box inside each image: area uniform, aspect log-uniform.

  The height is sqrt(area aspect) and the width sqrt(area / aspect), rounded. Of
  ten draws, the first whose box is lower and narrower than the image counts.
  This rejection favours nearly square boxes, so the resulting aspect is not
  exactly log-uniform. All positions are equally likely. `area` and `aspect` are
  as in `random_erase`.

  Returns:
    Top, left, height and width; height and width are 0 where no draw fits.
  """
  uniform = jax.random.uniform(key, (2 * _ATTEMPTS + 2, batch), jnp.float32)
  areas = area[0] + (area[1] - area[0]) * uniform[:_ATTEMPTS]
  areas = areas * (height * width)
  low, high = (math.log(end) for end in aspect)
  aspects = jnp.exp(low + (high - low) * uniform[_ATTEMPTS : 2 * _ATTEMPTS])
  rows = jnp.round(jnp.sqrt(areas * aspects)).astype(jnp.int32)
  columns = jnp.round(jnp.sqrt(areas / aspects)).astype(jnp.int32)
  fits = (rows < height) & (columns < width)
  first = jnp.argmax(fits, axis=0, keepdims=True)
  rows, columns = (
      jnp.take_along_axis(jnp.where(fits, side, 0), first, axis=0)[0]
      for side in (rows, columns)
  )
  top = (uniform[-2] * (height - rows + 1)).astype(jnp.int32)
  left = (uniform[-1] * (width - columns + 1)).astype(jnp.int32)
  return jnp.stack([top, left, rows, columns])
