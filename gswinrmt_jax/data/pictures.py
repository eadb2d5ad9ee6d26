"""Decodes images of any format to RGB, and label images to classes.

Preparation, training, evaluation and prediction all use this one decoder.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import io
import pathlib
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from gswinrmt_jax.errors import UserError

# Pillow supports more formats, but runs external programs for some of them.
FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
VOID = 255  # the label of a pixel that has no class
MAX_CLASSES = 254  # of pixels
_UNKNOWN = 254  # marks a value that is neither a class nor void
# Where Pillow looks for an orientation.
_WITH_ORIENTATION = 'exif', 'Raw profile type exif', 'XML:com.adobe.xmp', 'xmp'
_ORIENTATION = 0x0112  # EXIF tag
# Tags of TIFF.
_BITS = 0x0102
_PHOTOMETRIC = 0x0106  # 0: 0 is white. Pillow inverts 8 bits only.
# What undoes its values; others do nothing.
_TURNS = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}
_WHITE = (255, 255, 255, 255)
_LOSSY = ('JPEG', 'MPO', 'WEBP')
# Bits, bytes, palettes, integers.
_ONE_CHANNEL = ('1', 'L', 'P', 'I', 'I;16', 'I;16B')


class Stored(NamedTuple):
  """How an image is stored: size in pixels, Pillow's mode and format."""

  width: int
  height: int
  mode: str
  format: str
  turned: bool  # whether EXIF rotates or mirrors it


class _RangeError(ValueError):
  """An image has pixels that its data type does not have; the file is whole."""


def read(path: pathlib.Path) -> PIL.Image.Image:
  """Reads and decodes an image file, as `decode` does.

  Raises:
    UserError: If the file cannot be read, is not an image, or is damaged.
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
  """Decodes an image as `open_rgb` does; messages name it `name`.

  Raises:
    UserError: If it is not an image, or is damaged.
  """
  try:
    return open_rgb(encoded)[0]
  except ValueError as error:
    raise UserError(f'{name} {error}') from error


def open_rgb(encoded: bytes) -> tuple[PIL.Image.Image, Stored]:
  """Decodes an image to RGB, applying its EXIF orientation.

  Transparent parts become white. Pillow misreads, and this keeps, the
  transparent colour of a PNG of 16-bit RGB, or of 2-bit or 4-bit grey.

  Pixels of more than eight bits are scaled to eight by their data type, not
  their maximum, so that the darker of two images stays darker: the range is 0
  to 65535 for integers, as in PNG and PGM, and 0 to 1 for floats. An image with
  pixels outside that range is refused, as are a TIFF of several pages of one
  size, and one of more than 8 bits whose 0 is white.

  Returns:
    The image, and how it is stored.

  Raises:
    ValueError: If it cannot be used; the message reads 'is empty' or similar.
  """
  image, stored, _ = _open(encoded, _to_rgb)
  return image, stored


def to_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
  """Returns an opened image as `open_rgb` returns its file.

  Raises:
    ValueError: As `open_rgb`.
  """
  with _unusable():
    return _decoded(image, _to_rgb)[0]


@dataclasses.dataclass(frozen=True)
class LabelCoding:
  """How the values of a label image, or its palette indices, encode classes.

  A value is the class. `VOID` (255) and `void` mark pixels without a class.
  With `zero_is_void` (as in ADE20K), 0 does too, and the class is the value
  minus one. With `values`, one for each class, `values[c]` is the value of
  class c; 255 may be one.
  """

  num_classes: int = MAX_CLASSES
  void: int | None = None
  zero_is_void: bool = False
  # Not shown: the checksums of labels that runs recorded have the other fields.
  values: Sequence[int] = dataclasses.field(default=(), repr=False)

  @property
  def class_values(self) -> Sequence[int]:
    """The value of each class."""
    first = int(self.zero_is_void)
    return self.values or range(first, first + self.num_classes)

  @property
  def void_values(self) -> Sequence[int]:
    """The values that mark pixels without a class."""
    return np.flatnonzero(self._table == VOID).tolist()

  def decode(self, values: np.ndarray) -> np.ndarray:
    """Returns the classes `[h w]`, uint8, `VOID` where there is none.

    Raises:
      ValueError: If a value encodes no class; the message reads 'has ...'.
    """
    classes = self._table[np.clip(values, -1, 256)]
    unknown = classes == _UNKNOWN
    if unknown.any():
      first, *_, last = self.class_values
      known = ', '.join(map(str, self.values)) or f'{first} to {last}'
      none = ' or '.join(map(str, self.void_values))
      raise ValueError(
          f'has the value {values[unknown][0]}: classes are {known}'
          + f'; {none} is no class' * bool(none)
      )
    return classes

  @functools.cached_property
  def _table(self):
    """Classes of the values 0 to 255; the last entry is for all others."""
    table = np.full(257, _UNKNOWN, np.uint8)
    table[: int(self.zero_is_void)] = table[VOID] = VOID
    table[list(self.class_values)] = np.arange(self.num_classes)
    if self.void is not None:
      table[self.void] = VOID
    return table


def open_label(encoded: bytes, coding: LabelCoding) -> np.ndarray:
  """Decodes a label image, as `LabelCoding.decode` does its values.

  Raises:
    ValueError: If it cannot be used; the message reads 'is empty' or similar.
  """
  values, stored, rescaled = _open(encoded, np.asarray)
  if stored.format in _LOSSY:
    raise ValueError(f'is {stored.format}, which changes values: use PNG')
  if stored.turned:
    raise ValueError('is rotated by its EXIF tag: rotate its pixels instead')
  if rescaled:
    raise ValueError(
        "has grey levels of fewer than 8 bits, or a PGM's maximum below 255, "
        'which decoding would scale: store classes as 8-bit grey levels'
    )
  if stored.mode not in _ONE_CHANNEL:
    raise ValueError(
        f'has the mode {stored.mode}: labels need one channel, the class of '
        'each pixel as its grey level or index in a palette'
    )
  return coding.decode(values.astype(np.int32))


def _open(
    encoded: bytes, convert: Callable[[PIL.Image.Image], Any]
) -> tuple[Any, Stored, bool]:
  """Decodes the bytes of an image, see `_decoded`."""
  if not encoded:
    raise ValueError('is empty')
  with _unusable():
    with PIL.Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
      if image.format == 'TIFF' and _is_stack(image):
        raise _RangeError(
            'has several pages of one size: store each as an image'
        )
      return _decoded(image, convert)


def _decoded(image, convert):
  """Decodes an opened image.

  Returns:
    `convert(image)`, how it is stored, and `_is_rescaled(image)`.
  """
  # Pillow only warns here, and refuses at twice as many pixels.
  most = PIL.Image.MAX_IMAGE_PIXELS
  if most and image.width * image.height > most:
    raise PIL.Image.DecompressionBombError
  is_tiff = image.format == 'TIFF'
  # Decoding keeps their range, and forgets it, but for the tag.
  if is_tiff and image.tag_v2.get(_BITS) == (12,):
    raise _RangeError('has 12 bits per pixel: store 8 or 16')
  if is_tiff and image.mode[0] in 'IF' and image.tag_v2.get(_PHOTOMETRIC) == 0:
    raise _RangeError('has more than 8 bits, and 0 is white: invert it')
  if image.format == 'BMP' and _is_misread(image):
    raise _RangeError(
        'is a BMP of more than 1 bit per pixel with a palette of black and '
        'white, which Pillow misreads: store it as PNG'
    )
  turned = is_tiff and _turn(image) is not None  # Loading it rotates it.
  rescaled = _is_rescaled(image)
  image.load()
  upright, turned_here = _upright(image)
  stored = Stored(*image.size, image.mode, image.format, turned or turned_here)
  return convert(upright), stored, rescaled


@contextlib.contextmanager
def _unusable() -> Iterator[None]:
  """Turns what decoders raise into `ValueError`, 'is ...' or 'has ...'."""
  try:
    yield
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
  except (_RangeError, MemoryError):
    raise
  except Exception as error:  # Decoders raise many types.
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(f'is damaged: {reason}') from error


def _is_rescaled(image):
  """Returns whether decoding multiplies grey levels; see `Image.tile`."""
  codec, _, _, args = _tile(image) or ('', None, 0, ())
  # Those of a PGM have its largest value; a PBM has none.
  if codec.startswith('ppm') and not isinstance(args, str):
    return args[1] not in (255, 65535)
  return _raw_mode(image).startswith(('L;2', 'L;4'))


def _is_misread(image):
  """Returns whether each bit of a BMP's pixels would be read as a pixel.

  Pillow takes a palette of black and white for one bit per pixel. The length of
  a line, padded to 32 bits, tells them apart; of compressed pixels, which are
  misread as well, there is False in its place.
  """
  if _raw_mode(image) != '1':
    return False
  _, line, _ = _tile(image)[-1]
  return line != -(-image.width // 32) * 4


def _raw_mode(image):
  """Returns how pixels are stored, such as 'L;4', or ''; see `Image.tile`."""
  args = (_tile(image) or [''])[-1]
  return str(args if isinstance(args, str) else (args or ('',))[0])


def _tile(image):
  """Returns how Pillow will decode an image; None if it is in memory."""
  return next(iter(getattr(image, 'tile', ())), None)


def _is_stack(image):
  """Returns whether a TIFF has planes or channels as pages, not a thumbnail."""
  size = image.size
  if not image.is_animated:
    return False
  image.seek(1)
  second = image.size
  image.seek(0)
  return second == size


def _turn(image):
  """Returns how the EXIF orientation turns an image; None if it does not.

  Nothing else of the metadata is read: much of it is damaged in intact images.
  """
  try:
    return _TURNS.get(image.getexif().get(_ORIENTATION))
  except Exception:  # Parsers raise many types.
    return None


def _upright(image):
  """Applies the EXIF orientation; returns the image and whether it has one."""
  if (turn := _turn(image)) is None:
    return image, False
  image = image.transpose(turn)
  # Pillow keeps the metadata: given to a model, the image would turn again.
  for name in _WITH_ORIENTATION:
    image.info.pop(name, None)
  return image, True


def _to_rgb(image):
  if image.mode[0] in 'IF':  # more than 8 bits; `convert` would clip to 255
    rgb = _to_eight_bits(image).convert('RGB')
    clear = image.info.get('transparency')
    if isinstance(clear, int):
      mask = PIL.Image.fromarray(np.asarray(image) == clear)
      rgb.paste(_WHITE[:3], mask=mask)
    return rgb
  if image.has_transparency_data:
    image = image.convert('RGBA')
    paper = PIL.Image.new('RGBA', image.size, _WHITE)
    return PIL.Image.alpha_composite(paper, image).convert('RGB')
  return image.convert('RGB')


def _to_eight_bits(image):
  """Converts to 8-bit grey."""
  top = 1 if image.mode == 'F' else 65535
  values = np.array(image, np.float64)
  least, most = values.min(), values.max()
  if not (least >= 0 and most <= top):  # so that NaN is out of range too
    raise _RangeError(f'has pixels of {least:g} to {most:g}, not of 0 to {top}')
  values *= 255 / top
  return PIL.Image.fromarray(np.rint(values, out=values).astype(np.uint8))
