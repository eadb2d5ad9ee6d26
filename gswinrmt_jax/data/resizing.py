"""Resizes and crops images, antialiased as by Pillow.

Classification is bicubic, segmentation and detection are bilinear.
"""

import dataclasses
import math

import numpy as np
import PIL.Image

_BICUBIC = PIL.Image.Resampling.BICUBIC
_BILINEAR = PIL.Image.Resampling.BILINEAR
_TRIES = 10  # boxes drawn before falling back to a central one


@dataclasses.dataclass(frozen=True)
class RandomCrop:
  """Random crop of an image, to be resized to the model's input size.

  Attributes:
    scale: Smallest and largest area of the crop / area of the image.
    ratio: Smallest and largest width / height.
  """

  scale: tuple[float, float] = (0.08, 1.0)
  ratio: tuple[float, float] = (3 / 4, 4 / 3)


def center_crop(
    image: PIL.Image.Image, size: tuple[int, int], crop: float
) -> np.ndarray:
  """Resizes and centre-crops an RGB image, as in evaluation on ImageNet.

  The image is resized (bicubic) so that it just covers `size / crop`, and
  cropped to its central `size`, (height, width). With a crop of 0, the whole
  image is resized to `size`, ignoring its aspect ratio.

  Returns:
    uint8 `[h w 3]`.
  """
  height, width = size
  if not crop:
    return np.asarray(image.resize((width, height), _BICUBIC))
  across, down = int(width / crop), int(height / crop)  # as in timm
  # In integers, rounded down, as in torchvision.
  if across * image.height >= down * image.width:
    resized = across, max(down, across * image.height // image.width)
  else:
    resized = max(across, down * image.width // image.height), down
  image = image.resize(resized, _BICUBIC)
  left = round((image.width - width) / 2)
  top = round((image.height - height) / 2)
  return np.asarray(image.crop((left, top, left + width, top + height)))


def draw_box(
    width: int, height: int, how: RandomCrop, rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """Draws a box of random area and aspect ratio, as in training GoogLeNet.

      area ~ U(scale) width height,   log ratio ~ U(log ratio)
      w = round(sqrt(area ratio)),    h = round(sqrt(area / ratio))

  If the box fits into the image, its position is uniform. If ten boxes do not
  fit, the result is the largest central box with an allowed ratio. (Szegedy et
  al. 2014, section 6; as in torchvision's RandomResizedCrop.)

  Returns:
    Left, top, width and height in pixels.
  """
  low, high = (math.log(ratio) for ratio in how.ratio)
  for _ in range(_TRIES):
    least, most = how.scale
    area = width * height * (least + (most - least) * rng.random())
    ratio = math.exp(low + (high - low) * rng.random())
    across = round(math.sqrt(area * ratio))
    down = round(math.sqrt(area / ratio))
    if 0 < across <= width and 0 < down <= height:
      top = int((height - down + 1) * rng.random())
      left = int((width - across + 1) * rng.random())
      return left, top, across, down
  ratio = min(max(width / height, how.ratio[0]), how.ratio[1])
  across = max(1, min(width, round(height * ratio)))
  down = max(1, min(height, round(width / ratio)))
  return (width - across) // 2, (height - down) // 2, across, down


def random_crop(
    image: PIL.Image.Image,
    size: tuple[int, int],
    how: RandomCrop,
    rng: np.random.Generator,
) -> tuple[np.ndarray, tuple[float, float, float, float]]:
  """Crops a box of `draw_box`, resized to `size`, (height, width), bicubic.

  Returns:
    uint8 `[h w 3]`, and the box: top, left, height and width in fractions of
    the image's sides.
  """
  left, top, across, down = draw_box(*image.size, how, rng)
  # Crop first, so that the filter does not read pixels outside the box.
  part = image.crop((left, top, left + across, top + down))
  width, height = image.size
  box = (top / height, left / width, down / height, across / width)
  return np.asarray(part.resize(size[::-1], _BICUBIC)), box


def size_within(
    size: tuple[int, int],
    within: tuple[int, int] | None,
    factor: float = 1.0,
) -> tuple[int, int]:
  """Returns the width and height that an image of `size` is resized to.

      s = min(long / max(w, h), short / min(w, h)),  w' = floor(s w + 1/2)

  `within` is the maximum long side and the maximum short side, which are
  multiplied by `factor` and rounded down. Without it, s is the factor.
  """
  scale = factor
  if within:
    long, short = (int(side * factor) for side in within)
    scale = min(long / max(size), short / min(size))
  width, height = (max(1, int(side * scale + 0.5)) for side in size)
  return width, height


def resize(
    image: PIL.Image.Image,
    size: tuple[int, int],
    box: tuple[int, int, int, int] | None = None,
) -> np.ndarray:
  """Resizes an image (bilinear) to a width and height.

  Returns:
    uint8 `[y x 3]`; with a box (left, top, right, bottom) in the resized image,
    only that part of it is computed.
  """
  left, top, right, bottom = box or (0, 0, *size)
  (width, height), (across, down) = image.size, size
  source = (
      left * width / across,
      top * height / down,
      right * width / across,
      bottom * height / down,
  )
  shape = (right - left, bottom - top)
  return np.asarray(image.resize(shape, _BILINEAR, source))
