"""From an encoded image of any kind and size to what a model sees.

Training, evaluation and prediction decode and resize here, and nowhere else.
"""

import io
import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps

from gswinrmt_jax.errors import UserError

_WHITE = (255, 255, 255, 255)
_MAX_RATIO = 32  # of a picture's sides


def read(path: pathlib.Path) -> PIL.Image.Image:
  """Returns the picture in a file, as `decode` does.

  Raises:
    UserError: If it is no picture, or a damaged one.
  """
  try:
    return decode(path.read_bytes(), str(path))
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def decode(encoded: bytes, name: str) -> PIL.Image.Image:
  """Returns a picture as RGB, turned as its EXIF says.

  Transparent parts become white; pixels of 16 bits are scaled to eight.

  Args:
    encoded: An image file's bytes.
    name: Of the file, for the message.

  Raises:
    UserError: If it is no picture, or a damaged one.
  """
  try:
    with PIL.Image.open(io.BytesIO(encoded)) as picture:
      PIL.ImageOps.exif_transpose(picture, in_place=True)
      return _to_rgb(picture)
  except PIL.UnidentifiedImageError:
    raise UserError(f'{name} is no picture that can be read') from None
  except PIL.Image.DecompressionBombError as error:
    raise UserError(f'{name} is too large: {error}') from error
  except Exception as error:  # Decoders raise all kinds.
    raise UserError(f'{name} is damaged: {error}') from error


def _to_rgb(picture):
  if picture.mode[0] in 'IF':  # more than 8 bits; `convert` would clip to 255
    array = np.asarray(picture, np.float64)
    top = 1 if picture.mode == 'F' and array.max() <= 1 else 255
    if picture.mode.startswith('I;16') or array.max() > 255:
      top = 65535
    array = np.clip(array * (255 / top), 0, 255).astype(np.uint8)
    return PIL.Image.fromarray(array).convert('RGB')
  if picture.has_transparency_data:
    picture = picture.convert('RGBA')
    paper = PIL.Image.new('RGBA', picture.size, _WHITE)
    return PIL.Image.alpha_composite(paper, picture).convert('RGB')
  return picture.convert('RGB')


def fit(
    picture: PIL.Image.Image, size: tuple[int, int], crop: float
) -> np.ndarray:
  """Resizes and cuts out the middle, as evaluation on ImageNet does.

  The picture is resized, bicubic, so that it just covers `size / crop`; of
  that, the middle is kept. With a crop of 0 it is resized to `size` as it is,
  whatever its shape.

  Args:
    picture: RGB.
    size: Height and width to return.
    crop: Part of the covered size that is kept, along a side; 0 keeps all of
      the picture.

  Returns:
    uint8 `[h w 3]`.
  """
  height, width = size
  if not crop:
    return np.asarray(_resize(picture, (width, height)))
  picture = _not_too_thin(picture)
  covered = round(width / crop), round(height / crop)
  # In whole numbers, and rounded down, as torchvision does.
  across, down = covered
  if across * picture.height >= down * picture.width:
    resized = across, max(down, across * picture.height // picture.width)
  else:
    resized = max(across, down * picture.width // picture.height), down
  picture = _resize(picture, resized)
  left = round((picture.width - width) / 2)
  top = round((picture.height - height) / 2)
  box = (left, top, left + width, top + height)
  return np.asarray(picture.crop(box))


def _resize(picture, size):
  """Returns the picture at (width, height): antialiased, on eight bits."""
  return picture.resize(size, PIL.Image.Resampling.BICUBIC)


def _not_too_thin(picture):
  """Cuts what would be resized to millions of pixels and then thrown away."""
  longest = _MAX_RATIO * min(picture.size)
  if max(picture.size) <= longest:
    return picture
  width, height = (min(extent, longest) for extent in picture.size)
  left, top = (picture.width - width) // 2, (picture.height - height) // 2
  return picture.crop((left, top, left + width, top + height))
