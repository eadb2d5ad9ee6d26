"""From an image file of any kind to what a model sees."""

import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps

from gswinrmt_jax.errors import UserError

_WHITE = (255, 255, 255, 255)


def read(path: pathlib.Path) -> PIL.Image.Image:
  """Returns a picture as RGB, turned as its EXIF says.

  Transparent parts become white; pixels of 16 bits keep their upper eight.

  Raises:
    UserError: If it is no picture, or a damaged one.
  """
  try:
    with PIL.Image.open(path) as picture:
      picture = PIL.ImageOps.exif_transpose(picture)
      return _to_rgb(picture)
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except PIL.UnidentifiedImageError:
    raise UserError(f'{path} is no picture that can be read') from None
  except (
      OSError,
      ValueError,
      SyntaxError,
      PIL.Image.DecompressionBombError,
  ) as error:
    raise UserError(f'{path} is damaged: {error}') from error


def _to_rgb(picture):
  if picture.mode.startswith('I'):  # 16 bits; `convert` would clip to 255
    array = np.clip(np.asarray(picture, np.int64) >> 8, 0, 255)
    return PIL.Image.fromarray(array.astype(np.uint8)).convert('RGB')
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
  that, the middle is kept.

  Args:
    picture: RGB.
    size: Height and width to return.
    crop: Part of the covered size that is kept, along a side.

  Returns:
    uint8 `[h w 3]`.
  """
  height, width = size
  covered = round(width / crop), round(height / crop)
  # In whole numbers, and rounded down, as torchvision does.
  across, down = covered
  if across * picture.height >= down * picture.width:
    resized = across, max(down, across * picture.height // picture.width)
  else:
    resized = max(across, down * picture.width // picture.height), down
  picture = picture.resize(resized, PIL.Image.Resampling.BICUBIC)
  left = round((picture.width - width) / 2)
  top = round((picture.height - height) / 2)
  box = (left, top, left + width, top + height)
  return np.asarray(picture.crop(box))
