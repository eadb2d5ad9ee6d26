"""Prepares a data set of noise, stored as JPEG files, to time input with.

  python benchmarks/synthetic_images.py DIR --images 2048 --classes 100
  gswinrmt train --config=mini_imagenet_retention --config.data.name=synthetic \
    --config.data.dir=DIR --config.data.train_split=train \
    --config.data.val_split='train[:1]' --config.data.storage=decode

Its name is 'synthetic', and its only split is 'train'. A run logs its images
per second, and the share of time that its steps wait for images.
"""

import argparse
import concurrent.futures
import pathlib
import tempfile

import numpy as np
from PIL import Image

from gswinrmt_jax.data import class_folders, parallel
from gswinrmt_jax.data.prepare import writer
from gswinrmt_jax.errors import UserError

NAME = 'synthetic'
_QUALITY = 95  # gives files of about ImageNet's size


def make(
    folder: pathlib.Path, count: int, *, classes: int, size: tuple[int, int]
) -> None:
  """Prepares generated JPEG files as the data set `NAME`, split 'train'.

  Args:
    folder: The TFDS data directory.
    count: Number of images, assigned to classes in turn.
    classes: Number of classes, at most `count`.
    size: Width and height in pixels.
  """
  with tempfile.TemporaryDirectory() as made:
    pictures = pathlib.Path(made)
    places = [pictures / 'train' / f'class{k:04}' for k in range(classes)]
    for place in places:
      place.mkdir(parents=True)

    def draw(number):
      path = places[number % len(places)] / f'{number}.jpg'
      rng = np.random.default_rng(number)
      _texture(rng, size).save(path, quality=_QUALITY)

    with concurrent.futures.ThreadPoolExecutor(parallel.cores()) as pool:
      list(pool.map(draw, range(count)))
    writer.prepare(
        NAME,
        lambda: class_folders.find(pictures),
        data_dir=str(folder),
        replace=True,
    )


def _texture(rng, size):
  """Returns multi-scale noise, weaker at finer scales, as in photographs."""
  total = 128.0
  for cells in (4, 16, 64, 256):
    noise = rng.integers(0, 256, (cells, cells, 3), np.uint8)
    scaled = Image.fromarray(noise).resize(size, Image.BICUBIC)
    total += (np.asarray(scaled) - 128.0) / cells**0.3
  return Image.fromarray(total.clip(0, 255).astype(np.uint8))


def width_height(text: str) -> tuple[int, int]:
  """Returns the numbers of 'WIDTHxHEIGHT'; anything else is a ValueError."""
  width, height = map(int, text.split('x'))
  return width, height


def main() -> None:
  """Prepares the data set."""
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('folder', metavar='DIR', type=pathlib.Path)
  parser.add_argument('--images', type=int, default=2048)
  parser.add_argument('--classes', type=int, default=100)
  parser.add_argument(
      '--size',
      type=width_height,
      default='500x375',
      metavar='WIDTHxHEIGHT',
      help="default: 500x375, common among ImageNet's images",
  )
  args = parser.parse_args()
  try:
    make(args.folder, args.images, classes=args.classes, size=args.size)
  except UserError as error:
    parser.error(str(error))


if __name__ == '__main__':
  main()
