r"""Generates class folders of images with a digit among scraps of others.

  python examples/cluttered_digits.py images
  gswinrmt train --config=digits_retention --config.data.name=images \
    --workdir=runs/cluttered

To classify such an image, a model must find the digit, so its maps should show
where the digit is. `boxes.json` in the folder has the true box of each digit:
left, top, right and bottom in pixels. The digits are the packaged ones, and
each split uses its own.
"""

import argparse
import json
import pathlib

import numpy as np
import PIL.Image

from gswinrmt_jax.data import digits

SIZE = 64  # pixels per side
COUNTS = {'train': 6000, 'val': 500, 'test': 500}
DIGIT = (20, 29)  # range of pixels per side, end exclusive; as is the next
SCRAP = (5, 10)
NUM_SCRAPS = 14


def picture(
    rng: np.random.Generator, glyphs: np.ndarray, row: int
) -> tuple[PIL.Image.Image, tuple[int, int, int, int]]:
  """Draws one image.

  Args:
    rng: Source of the draws.
    glyphs: uint8 `[n 8 8]`, the digits; scraps are cut from them, too.
    row: Row of the digit to be found.

  Returns:
    The image, and the box of its digit.
  """
  canvas = rng.normal(40, 12, (SIZE, SIZE, 3))
  for _ in range(NUM_SCRAPS):
    other = _scaled(glyphs[rng.integers(len(glyphs))], rng.integers(*DIGIT))
    side = rng.integers(*SCRAP)
    left, top = rng.integers(0, len(other) - side, 2)
    _paint(rng, canvas, other[top : top + side, left : left + side])
  box = _paint(rng, canvas, _scaled(glyphs[row], rng.integers(*DIGIT)))
  pixels = np.clip(canvas, 0, 255).astype(np.uint8)
  return PIL.Image.fromarray(pixels), box


def _scaled(glyph, side):
  """Enlarges a glyph; returns the share of ink in each pixel, 0 to 1."""
  large = PIL.Image.fromarray(glyph).resize((side, side))
  return np.asarray(large, np.float64) / 255


def _paint(rng, canvas, ink):
  """Puts ink of a random colour at a random place; returns its box."""
  side = len(ink)
  left, top = rng.integers(0, SIZE - side + 1, 2)
  place = canvas[top : top + side, left : left + side]
  colour = rng.uniform(120, 255, 3)
  place += ink[:, :, None] * (colour - place)
  return tuple(map(int, (left, top, left + side, top + side)))


def main() -> None:
  """Writes FOLDER/SPLIT/CLASS/NUMBER.png and boxes.json."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument('folder', type=pathlib.Path)
  folder = parser.parse_args().folder
  boxes = {}
  for seed, (split, count) in enumerate(COUNTS.items()):
    rng = np.random.default_rng(seed)
    images, labels = digits.read(split)
    glyphs = images[:, ::4, ::4, 0]  # 8 x 8, as scanned
    for number in range(count):
      row = rng.integers(len(glyphs))
      image, box = picture(rng, glyphs, row)
      name = f'{split}/{digits.CLASSES[labels[row]]}/{number:04d}.png'
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      image.save(folder / name)
      boxes[name] = box
  (folder / 'boxes.json').write_text(json.dumps(boxes))


if __name__ == '__main__':
  main()
