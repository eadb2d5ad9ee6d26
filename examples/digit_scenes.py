"""Generates scenes of digits among scraps of digits, with label images.

  python examples/digit_scenes.py scenes
  gswinrmt prepare segmentation digit_scenes --images scenes/images \
    --labels scenes/labels --classes scenes/classes.txt

Writes images/SPLIT/NUMBER.jpg and label images, labels/SPLIT/NUMBER.png with a
palette: 0 is the background, including the scraps, and 1 + D the ink of the
digit D. Image sizes vary. The digits are the packaged ones, and each split uses
its own.
"""

import argparse
import colorsys
import pathlib

import numpy as np
import PIL.Image

from gswinrmt_jax.data import digits

CLASSES = ('background', *digits.CLASSES)
COUNTS = {'train': 600, 'val': 100, 'test': 100}
SIZE = (96, 161)  # range of pixels per side, end exclusive; as are the next two
DIGIT = (24, 65)
SCRAP = (6, 16)
_GREY = [(60, 60, 60)]
_RAINBOW = [colorsys.hsv_to_rgb(i / 10, 0.7, 1) for i in range(10)]
PALETTE = np.uint8([*_GREY, *(np.array(_RAINBOW) * 255)])


def scene(
    rng: np.random.Generator, glyphs: np.ndarray, labels: np.ndarray
) -> tuple[PIL.Image.Image, PIL.Image.Image]:
  """Draws a scene of two to five digits.

  Args:
    rng: Source of the draws.
    glyphs: uint8 `[n 8 8]`.
    labels: Digit that each glyph shows.

  Returns:
    The image, and its label image.
  """
  height, width = rng.integers(*SIZE, 2)
  coarse = rng.integers(0, 160, (height // 16, width // 16, 3), np.uint8)
  texture = PIL.Image.fromarray(coarse).resize((width, height))
  canvas = texture + rng.normal(0, 10, (height, width, 3))
  classes = np.zeros((height, width), np.uint8)
  for _ in range(14):
    ink = _scaled(glyphs[rng.integers(len(glyphs))], rng.integers(*DIGIT))
    side = rng.integers(*SCRAP)
    left, top = rng.integers(0, len(ink) - side, 2)
    _paint(rng, canvas, ink[top : top + side, left : left + side])
  for row in rng.integers(0, len(glyphs), rng.integers(2, 6)):
    ink = _scaled(glyphs[row], rng.integers(*DIGIT))
    place = _paint(rng, canvas, ink)
    classes[place][ink > 0.5] = 1 + labels[row]
  image = PIL.Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
  label_image = PIL.Image.fromarray(classes, 'P')
  label_image.putpalette(PALETTE.tobytes())
  return image, label_image


def _scaled(glyph, side):
  """Enlarges a glyph; returns the share of ink in each pixel, 0 to 1."""
  return np.asarray(PIL.Image.fromarray(glyph).resize((side, side))) / 255


def _paint(rng, canvas, ink):
  """Puts ink of a random colour at a random place; returns the place."""
  side = len(ink)
  top, left = (
      rng.integers(0, extent - side + 1) for extent in canvas.shape[:2]
  )
  place = slice(top, top + side), slice(left, left + side)
  colour = rng.uniform(120, 255, 3)
  canvas[place] += ink[:, :, None] * (colour - canvas[place])
  return place


def write(folder: pathlib.Path, counts: dict[str, int]) -> None:
  """Writes images/, labels/ and classes.txt; `counts` are scenes per split."""
  for seed, (split, count) in enumerate(counts.items()):
    rng = np.random.default_rng(seed)
    images, labels = digits.read(split)
    glyphs = images[:, ::4, ::4, 0]  # 8 x 8, as scanned
    for kind in ('images', 'labels'):
      (folder / kind / split).mkdir(parents=True, exist_ok=True)
    for number in range(count):
      image, label_image = scene(rng, glyphs, labels)
      name = f'{split}/{number:04d}'
      image.save(folder / 'images' / f'{name}.jpg', quality=90)
      label_image.save(folder / 'labels' / f'{name}.png')
  (folder / 'classes.txt').write_text('\n'.join(CLASSES) + '\n')


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument('folder', type=pathlib.Path)
  write(parser.parse_args().folder, COUNTS)
