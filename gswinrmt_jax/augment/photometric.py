"""Photometric distortion: brightness, contrast, saturation and hue.

As in SSD (Liu et al. 2016, section 2.2), with the settings of mmsegmentation.
Unlike mmsegmentation, this does not round to integer grey levels after each
change. The hue_delta of 18 there is in OpenCV's units of 2 degrees.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

_BRIGHTNESS = 32.0  # grey levels, up or down
_FACTOR = (0.5, 1.5)  # range for contrast and for saturation
_HUE = 36.0  # degrees, either way


class Distortion(NamedTuple):
  """The distortion drawn for each image."""

  brightness: Float[Array, ' b']  # grey levels to add
  contrast: Float[Array, ' b']  # factor of the grey levels
  contrast_first: Bool[Array, ' b']  # before saturation and hue
  saturation: Float[Array, ' b']  # factor of the saturation in HSV
  hue: Float[Array, ' b']  # rotation of the hue in HSV, in degrees


def draw(key: PRNGKeyArray, batch: int) -> Distortion:
  """Draws a distortion for each of `batch` images.

  Each of the four changes has probability 1/2. Contrast comes before or after
  saturation and hue, with equal probability.
  """
  uniform = jax.random.uniform(key, (9, batch), jnp.float32)
  done = uniform[:4] < 0.5
  low, high = _FACTOR
  signed, factor = 2 * uniform - 1, low + (high - low) * uniform
  return Distortion(
      brightness=jnp.where(done[0], _BRIGHTNESS * signed[4], 0),
      contrast=jnp.where(done[1], factor[5], 1),
      contrast_first=uniform[8] < 0.5,
      saturation=jnp.where(done[2], factor[6], 1),
      hue=jnp.where(done[3], _HUE * signed[7], 0),
  )


def distort(
    image: Float[Array, 'b h w 3'], how: Distortion
) -> Float[Array, 'b h w 3']:
  """Changes brightness, contrast and colours, clipping to 0..255 each time."""
  how = Distortion(*(value[:, None, None, None] for value in how))

  def clip(image):
    return jnp.clip(image, 0, 255)

  image = clip(image + how.brightness)
  image = clip(image * jnp.where(how.contrast_first, how.contrast, 1))
  image = _change_colours(image, how.saturation, how.hue)
  return clip(image * jnp.where(how.contrast_first, 1, how.contrast))


def _change_colours(image, saturation, hue):
  """Scales the saturation, up to 1, and rotates the hue, in HSV.

  The conversion back to RGB has n = 5, 3, 1 for red, green and blue in

      value - chroma max(0, min(k, 4 - k, 1)),  k = (n + hue / 60) mod 6
  """
  red, green, blue = jnp.split(image, 3, axis=-1)
  value = image.max(-1, keepdims=True)
  chroma = value - image.min(-1, keepdims=True)
  divisor = jnp.where(chroma > 0, chroma, 1)
  turned = hue / 60 + jnp.select(
      [value == red, value == green],
      [(green - blue) / divisor, (blue - red) / divisor + 2],
      (red - green) / divisor + 4,
  )
  chroma = jnp.minimum(chroma * saturation, value)
  k = (jnp.array([[[[5, 3, 1]]]]) + turned) % 6
  return value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)
