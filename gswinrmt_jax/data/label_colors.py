"""Colours of classes, and the font of their names, in pictures."""

import pathlib

import numpy as np
from PIL import ImageFont

_LEVELS = 3  # bits of each channel that encode the class


def palette(num_classes: int) -> np.ndarray:
  """Returns the colour of each class, uint8 `[k, 3]`, as in PASCAL VOC.

  For class c, the bits of `c + 1` go to red, green and blue in turn, from the
  highest bit of each channel down. No class is black; after 511 classes, the
  colours repeat.
  """
  codes = np.arange(num_classes) % (2 ** (3 * _LEVELS) - 1) + 1
  bits = codes[:, None] >> np.arange(3 * _LEVELS) & 1
  weights = 2 ** (7 - np.arange(_LEVELS))
  return (weights @ bits.reshape(-1, _LEVELS, 3)).astype(np.uint8)


def font(size: int) -> ImageFont.FreeTypeFont:
  """Returns DejaVu Sans, which has Latin, Greek and Cyrillic letters.

  Pillow's own font has few letters beyond ASCII.
  """
  import matplotlib

  path = pathlib.Path(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf')
  return ImageFont.truetype(path, size)


def overlay(
    image: np.ndarray, label: np.ndarray, num_classes: int
) -> np.ndarray:
  """Returns the average of an image and the colours of its classes.

  Args:
    image: uint8 `[..., h, w, 3]`.
    label: Classes `[..., h, w]`; pixels with other values stay unchanged.
    num_classes: Number of classes.
  """
  known = label < num_classes
  colors = palette(num_classes)[np.where(known, label, 0)]
  mixed = (image.astype(np.uint16) + colors + 1) // 2
  return np.where(known[..., None], mixed, image).astype(np.uint8)
