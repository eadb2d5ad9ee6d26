"""Random Erasing (Zhong et al. 2020): a box of noise over part of an image."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, PRNGKeyArray

from gswinrmt_jax.augment import draws

# Area of the box as a share of the image, and height over width.
MIN_AREA, MAX_AREA = 0.02, 1 / 3
MIN_ASPECT, MAX_ASPECT = 0.3, 1 / 0.3
# Boxes as high or as wide as the image are drawn again, so many times in all.
ATTEMPTS = 10


def random_box(
    key: PRNGKeyArray, batch: int, *, height: int, width: int
) -> Int32[Array, '4 b']:
  """Draws a box inside of each image: area uniform, aspect log-uniform.

  The sides are sqrt(area aspect) and sqrt(area / aspect), rounded. Of ten draws
  the first counts whose box is less high and less wide than the image; such
  boxes are the more likely, the nearer to square, so the shapes that come out
  are not quite log-uniform. All places are equally likely.

  Args:
    key: Source of the draws.
    batch: Number of images.
    height: Rows of the image.
    width: Columns of the image.

  Returns:
    Top, left, height and width; height and width 0 where no draw fits.
  """
  uniform = jax.random.uniform(key, (2 * ATTEMPTS + 2, batch), jnp.float32)
  area = MIN_AREA + (MAX_AREA - MIN_AREA) * uniform[:ATTEMPTS]
  area = area * (height * width)
  low, high = math.log(MIN_ASPECT), math.log(MAX_ASPECT)
  aspect = jnp.exp(low + (high - low) * uniform[ATTEMPTS : 2 * ATTEMPTS])
  tall = jnp.round(jnp.sqrt(area * aspect)).astype(jnp.int32)
  wide = jnp.round(jnp.sqrt(area / aspect)).astype(jnp.int32)
  fits = (tall < height) & (wide < width)
  first = jnp.argmax(fits, axis=0, keepdims=True)
  tall, wide = (
      jnp.take_along_axis(jnp.where(fits, side, 0), first, axis=0)[0]
      for side in (tall, wide)
  )
  top = draws.integer(uniform[-2], height - tall + 1)
  left = draws.integer(uniform[-1], width - wide + 1)
  return jnp.stack([top, left, tall, wide])


def random_erase(
    key: PRNGKeyArray, image: Float32[Array, 'b h w c'], *, prob: float
) -> Float32[Array, 'b h w c']:
  """Replaces a random box by standard normal noise, each number by its own.

  Args:
    key: Source of the draws; each image has its own.
    image: Normalised images, of mean 0 and deviation 1 over the data set.
    prob: Probability that an image loses a box; 0 returns the images.

  Returns:
    The images with their boxes.
  """
  if not prob:
    return image
  batch, height, width, _ = image.shape
  coin_key, box_key, noise_key = jax.random.split(key, 3)
  top, left, tall, wide = random_box(
      box_key, batch, height=height, width=width
  )[:, :, None, None]
  y = jnp.arange(height, dtype=jnp.int32)[None, :, None]
  x = jnp.arange(width, dtype=jnp.int32)[None, None, :]
  coin = jax.random.uniform(coin_key, (batch, 1, 1), dtype=jnp.float32)
  erased = (coin < prob) & (y >= top) & (y < top + tall)
  erased = erased & (x >= left) & (x < left + wide)
  noise = jax.random.normal(noise_key, image.shape, dtype=jnp.float32)
  return jnp.where(erased[..., None], noise, image)
