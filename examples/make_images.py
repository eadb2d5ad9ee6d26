"""Writes `examples/images`, test images of the packaged digits.

  python examples/make_images.py

UCI Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, 1998,
https://doi.org/10.24432/C50P49, CC BY 4.0. Changed: enlarged to 32 x 32 pixels.
"""

import argparse
import pathlib

import PIL.Image

from gswinrmt_jax.data import datasets

FOLDER = pathlib.Path(__file__).parent / 'images'


def main() -> None:
  """Writes the first test image of each even digit."""
  test = datasets.load('digits', 'test')
  FOLDER.mkdir(exist_ok=True)
  for digit in range(0, 10, 2):
    row = test.label.tolist().index(digit)
    image = PIL.Image.fromarray(test.image[row])
    image.save(FOLDER / f'digit_{digit}.png', optimize=True)


if __name__ == '__main__':
  argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  ).parse_args()
  main()
