"""Photometric distortion: brightness, contrast, saturation and hue.

As in SSD (Liu et al. 2016, section 2.2) and, with its numbers, mmsegmentation.
That rounds to whole grey levels after each change; this does not. Its hue_delta
of 18 counts OpenCV's bytes, which are 2 degrees each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

_BRIGHTNESS = 32.0  # grey levels, up or down
_FACTOR = (0.5, 1.5)  # of contrast, and of saturation
_HUE = 36.0  # degrees, either way


class Distortion(NamedTuple):
  """What is done to each image.

  Attributes:
    brightness: Grey levels that are added.
    contrast: Factor of the grey levels.
    contrast_first: Whether contrast is changed before the colours, or after.
    saturation: Factor of the saturation in HSV.
    hue: Degrees that the hue in HSV is turned by.
  """

  brightness: Float[Array, ' b']
  contrast: Float[Array, ' b']
  contrast_first: Bool[Array, ' b']
  saturation: Float[Array, ' b']
  hue: Float[Array, ' b']


def photometric_distortion(
    key: PRNGKeyArray, image: Float[Array, 'b h w 3']
) -> Float[Array, 'b h w 3']:
  """Distorts the colours of each image at random.

  Each of the four changes is made with probability 1/2, and contrast comes
  first or last with equal probability.

  Args:
    key: Source of the draws; each image has its own.
    image: Grey levels, 0 to 255.

  Returns:
    Grey levels, 0 to 255.
  """
  return distort(image, draw(key, image.shape[0]))


def draw(key: PRNGKeyArray, batch: int) -> Distortion:
  """Draws what is done to each of `batch` images."""
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
  """Changes brightness, contrast and colours; clips after each to 0 to 255."""
  how = Distortion(*(value[:, None, None, None] for value in how))

  def clip(image):
    return jnp.clip(image, 0, 255)

  image = clip(image + how.brightness)
  image = clip(image * jnp.where(how.contrast_first, how.contrast, 1))
  image = _change_colours(image, how.saturation[..., 0], how.hue[..., 0])
  return clip(image * jnp.where(how.contrast_first, 1, how.contrast))


def _change_colours(image, saturation, hue):
  """Scales the saturation, at most to 1, and turns the hue, in HSV.

  Back in RGB, red, green and blue have n = 5, 3, 1 in

      value - chroma max(0, min(k, 4 - k, 1)),  k = (n + hue / 60) mod 6
  """
  red, green, blue = (image[..., channel] for channel in range(3))
  value, least = image.max(-1), image.min(-1)
  chroma = value - least
  divisor = jnp.where(chroma > 0, chroma, 1)
  turned = jnp.where(
      value == red,
      (green - blue) / divisor,
      jnp.where(
          value == green,
          (blue - red) / divisor + 2,
          (red - green) / divisor + 4,
      ),
  )
  turned = turned + hue / 60
  chroma = jnp.minimum(chroma * saturation, value)
  channels = []
  for n in (5, 3, 1):
    k = (n + turned) % 6
    channels.append(value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1))
  return jnp.stack(channels, axis=-1)
