"""From an encoded image of any kind and size to what a model sees.

Preparation, training, evaluation and prediction decode here, and nowhere else.
"""

from collections.abc import Callable
import dataclasses
import functools
import io
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageOps

from gswinrmt_jax.errors import UserError

# Pillow has more, and would run other programs on some of them.
FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
VOID = 255  # the label of a pixel that has no class
MAX_CLASSES = 254  # of pixels
_UNKNOWN = 254  # in place of a value that stands for no class
_BICUBIC = PIL.Image.Resampling.BICUBIC  # antialiased, on eight bits
_ORIENTATION = 0x0112  # EXIF tag
_WHITE = (255, 255, 255, 255)
_MAX_RATIO = 32  # of an image's sides
_TRIES = 10  # boxes that are drawn before the middle is taken
_STRIP = 64  # rows that are converted at a time
_LOSSY = ('JPEG', 'MPO', 'WEBP')
_ONE_CHANNEL = ('1', 'L', 'P', 'I', 'I;16')  # bits, bytes, palettes, integers


class Stored(NamedTuple):
  """How an image is stored: stored pixels, Pillow's mode and format."""

  width: int
  height: int
  mode: str
  format: str
  turned: bool  # or mirrored, by EXIF


@dataclasses.dataclass(frozen=True)
class RandomCrop:
  """What is drawn of an image, to be resized to the model's input size.

  Attributes:
    scale: Least and greatest share of the image's area.
    ratio: Least and greatest width / height.
  """

  scale: tuple[float, float] = (0.08, 1.0)
  ratio: tuple[float, float] = (3 / 4, 4 / 3)


def read(path: pathlib.Path) -> PIL.Image.Image:
  """Returns the image in a file, as `decode` does.

  Raises:
    UserError: If it is not an image, or a damaged one.
  """
  try:
    return decode(path.read_bytes(), str(path))
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except IsADirectoryError:
    raise UserError(f'{path} is a folder: name image files in it') from None
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def decode(encoded: bytes, name: str) -> PIL.Image.Image:
  """Returns an image as `open_rgb` does; messages name it `name`.

  Raises:
    UserError: If it is not an image, or a damaged one.
  """
  try:
    return open_rgb(encoded)[0]
  except ValueError as error:
    raise UserError(f'{name} {error}') from error


def open_rgb(encoded: bytes) -> tuple[PIL.Image.Image, Stored]:
  """Returns an image as RGB, rotated as its EXIF says, and how it is stored.

  Transparent parts become white. More than eight bits are scaled to eight by
  the type of the pixels alone, so that the darker of two images stays darker:
  integers are taken as 0 to 65535, as in PNG and PGM, floats as 0 to 1. A TIFF
  file whose pixels lie outside that range is refused.

  Raises:
    ValueError: If it cannot be used; the message continues 'it ...'.
  """
  return _open(encoded, _to_rgb)


@dataclasses.dataclass(frozen=True)
class LabelCoding:
  """What the values in a label image mean; those of a palette are indices.

  A value is the class. `VOID` (255) and `void` mean that a pixel has none. With
  `zero_is_void` (ADE20K's) 0 means it, too, and the class is one less than the
  value.
  """

  num_classes: int = MAX_CLASSES
  void: int | None = None
  zero_is_void: bool = False

  def decode(self, values: np.ndarray) -> np.ndarray:
    """Returns the classes `[h w]`, uint8, `VOID` where there is none.

    Raises:
      ValueError: If a value stands for no class; the message continues 'it'.
    """
    classes = self._table[np.clip(values, -1, 256)]
    unknown = classes == _UNKNOWN
    if not unknown.any():
      return classes
    first = int(self.zero_is_void)
    none = np.flatnonzero(self._table == VOID)
    raise ValueError(
        f'has the value {values[unknown][0]}: a class is {first} to '
        f'{first + self.num_classes - 1}, none is '
        f'{" or ".join(map(str, none))}'
    )

  @functools.cached_property
  def _table(self):
    """Classes of the values 0 to 255, and of 256, which -1 reads, too."""
    first = int(self.zero_is_void)
    table = np.full(257, _UNKNOWN, np.uint8)
    table[first : first + self.num_classes] = np.arange(self.num_classes)
    table[:first] = VOID
    table[[VOID] if self.void is None else [VOID, self.void]] = VOID
    return table


def open_label(encoded: bytes, coding: LabelCoding) -> np.ndarray:
  """Returns the classes of an image's pixels from an encoded label image.

  Returns:
    uint8 `[h w]`, `VOID` where there is none.

  Raises:
    ValueError: If it cannot be used; the message continues 'it ...'.
  """
  values, stored = _open(encoded, np.asarray)
  if stored.format in _LOSSY:
    raise ValueError(f'is {stored.format}, which changes values: use PNG')
  if stored.turned:
    raise ValueError('is rotated by its EXIF: store it as it is to be seen')
  if stored.mode not in _ONE_CHANNEL:
    raise ValueError(
        f'has the mode {stored.mode}: labels need one channel, the class of '
        'each pixel as its grey level or index in a palette'
    )
  return coding.decode(values.astype(np.int32))


def _open(
    encoded: bytes, convert: Callable[[PIL.Image.Image], Any]
) -> tuple[Any, Stored]:
  """Returns what `convert` makes of an image, and how it is stored."""
  if not encoded:
    raise ValueError('is empty')
  try:
    with PIL.Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
      # Pillow itself refuses at twice as many, and warns before.
      most = PIL.Image.MAX_IMAGE_PIXELS
      if most and image.width * image.height > most:
        raise PIL.Image.DecompressionBombError
      image.load()
      turned = image.getexif().get(_ORIENTATION, 1) > 1
      stored = Stored(*image.size, image.mode, image.format, turned)
      PIL.ImageOps.exif_transpose(image, in_place=True)
      return convert(image), stored
  except PIL.UnidentifiedImageError as error:
    raise ValueError(
        f'is not an image that can be read ({", ".join(FORMATS)})'
    ) from error
  except (
      PIL.Image.DecompressionBombWarning,
      PIL.Image.DecompressionBombError,
  ) as error:
    most = PIL.Image.MAX_IMAGE_PIXELS
    raise ValueError(f'has more than {most:,} pixels') from error
  except Exception as error:  # Decoders raise all kinds.
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(f'is damaged: {reason}') from error


def _to_rgb(image):
  if image.mode[0] in 'IF':  # more than 8 bits; `convert` would clip to 255
    return _to_eight_bits(image).convert('RGB')
  if image.has_transparency_data:
    image = image.convert('RGBA')
    paper = PIL.Image.new('RGBA', image.size, _WHITE)
    return PIL.Image.alpha_composite(paper, image).convert('RGB')
  return image.convert('RGB')


def _to_eight_bits(image):
  """Returns the image in grey; converts a strip at a time, to save memory."""
  top = 1 if image.mode == 'F' else 65535
  extremes = [(strip.min(), strip.max()) for strip in _strips(image)]
  least, most = np.min(extremes), np.max(extremes)
  if not (least >= 0 and most <= top):  # so that NaN is out of range too
    raise ValueError(f'pixels of {least:g} to {most:g}, not of 0 to {top}')
  scaled = (np.float64(strip) * (255 / top) for strip in _strips(image))
  grey = [np.rint(strip).astype(np.uint8) for strip in scaled]
  return PIL.Image.fromarray(np.concatenate(grey))


def _strips(image):
  for top in range(0, image.height, _STRIP):
    bottom = min(top + _STRIP, image.height)
    yield np.asarray(image.crop((0, top, image.width, bottom)))


def fit(
    image: PIL.Image.Image, size: tuple[int, int], crop: float
) -> np.ndarray:
  """Resizes and cuts out the middle, as evaluation on ImageNet does.

  The RGB image is resized, bicubic, so that it just covers `size / crop`,
  and its middle of `size`, (height, width), is kept. With a crop of 0 the whole
  image is squeezed to `size`.

  Returns:
    uint8 `[h w 3]`.
  """
  height, width = size
  if not crop:
    return np.asarray(image.resize((width, height), _BICUBIC))
  image = _not_too_thin(image)
  covered = round(width / crop), round(height / crop)
  # In whole numbers, and rounded down, as torchvision does.
  across, down = covered
  if across * image.height >= down * image.width:
    resized = across, max(down, across * image.height // image.width)
  else:
    resized = max(across, down * image.width // image.height), down
  image = image.resize(resized, _BICUBIC)
  left = round((image.width - width) / 2)
  top = round((image.height - height) / 2)
  box = (left, top, left + width, top + height)
  return np.asarray(image.crop(box))


def draw_box(
    width: int, height: int, how: RandomCrop, rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """Draws a box of random area and shape, as GoogLeNet's training did.

      area ~ U(scale) width height,   log ratio ~ U(log ratio)
      w = round(sqrt(area ratio)),    h = round(sqrt(area / ratio))

  If it fits into the image, its place is uniform. After ten that do not, it
  is the largest central box of an allowed shape. (Szegedy et al. 2014, section
  6; as torchvision's RandomResizedCrop.)

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
  """Resizes a box of `draw_box` to `size`, (height, width), bicubic.

  Returns:
    uint8 `[h w 3]`, and the box: top, left, height and width in fractions of
    the image's sides.
  """
  left, top, across, down = draw_box(*image.size, how, rng)
  # Cut first: what lies outside the box is not looked at.
  part = image.crop((left, top, left + across, top + down))
  width, height = image.size
  box = (top / height, left / width, down / height, across / width)
  return np.asarray(part.resize(size[::-1], _BICUBIC)), box


def _not_too_thin(image):
  """Cuts what would be resized to millions of pixels and then thrown away."""
  longest = _MAX_RATIO * min(image.size)
  if max(image.size) <= longest:
    return image
  width, height = (min(extent, longest) for extent in image.size)
  left, top = (image.width - width) // 2, (image.height - height) // 2
  return image.crop((left, top, left + width, top + height))
