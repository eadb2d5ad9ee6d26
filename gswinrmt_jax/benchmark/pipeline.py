"""Compares training with its input pipeline to training on one batch."""

from collections.abc import Sequence
import concurrent.futures
import pathlib
import tempfile
from typing import Any

import numpy as np
from PIL import Image

from gswinrmt_jax.benchmark import measure as measure_lib
from gswinrmt_jax.benchmark.worker import Spec
from gswinrmt_jax.data import class_folders, parallel
from gswinrmt_jax.data.prepare import writer
from gswinrmt_jax.errors import UserError

DATA = 'synthetic'  # name of the data set
SMALL = 32  # pixels; images up to this size are stored at their training size
_STORED = (500, 375)  # a common width and height of ImageNet's images
_QUALITY = 95  # gives files of about ImageNet's size


def measure(
    bench: measure_lib.Bench,
    specs: Sequence[Spec],
    *,
    storages: Sequence[str],
    images: int,
    workers: int | None,
) -> dict[str, Any]:
  """Measures each model without input pipeline, then with each storage.

  `workers` processes decode the synthetic images; None takes the recipe's
  number.

  Raises:
    UserError: If there are fewer images than classes.
  """
  groups = []
  for spec in specs:
    classes, size = spec['classes'], spec['image_size']
    if images < classes:
      raise UserError(
          f'--images {images}: there are {classes} classes, each of which '
          'needs one; --classes takes fewer'
      )
    stored = (size, size) if size <= SMALL else _STORED
    with tempfile.TemporaryDirectory(prefix='gswinrmt_') as folder:
      make_data(pathlib.Path(folder), images, classes=classes, size=stored)
      shared = {**spec, 'dir': folder, 'workers': workers}
      programs = {}
      for storage in (None, *storages):
        name = f'{spec["model"]}, {storage or "without"}'
        programs[name] = {**shared, 'storage': storage}
      groups.append(bench.measure(programs))
  return {'groups': groups}


def make_data(
    folder: pathlib.Path, count: int, *, classes: int, size: tuple[int, int]
) -> None:
  """Prepares generated JPEG files as the data set `DATA`, split 'train'.

  Args:
    folder: The TFDS data directory.
    count: Number of images, assigned to classes in turn.
    classes: Number of classes, at most `count`.
    size: Width and height in pixels.
  """
  with tempfile.TemporaryDirectory(dir=folder) as made:
    pictures = pathlib.Path(made)
    classes = [pictures / 'train' / f'class{k:04}' for k in range(classes)]
    for place in classes:
      place.mkdir(parents=True)

    def make(number):
      path = classes[number % len(classes)] / f'{number}.jpg'
      rng = np.random.default_rng(number)
      _texture(rng, size).save(path, quality=_QUALITY)

    with concurrent.futures.ThreadPoolExecutor(parallel.cores()) as pool:
      list(pool.map(make, range(count)))
    writer.prepare(
        DATA, lambda: class_folders.find(pictures), data_dir=str(folder)
    )


def _texture(rng, size):
  """Returns multi-scale noise, weaker at finer scales, as in photographs."""
  total = 128.0
  for cells in (4, 16, 64, 256):
    noise = rng.integers(0, 256, (cells, cells, 3), np.uint8)
    scaled = Image.fromarray(noise).resize(size, Image.BICUBIC)
    total += (np.asarray(scaled) - 128.0) / cells**0.3
  return Image.fromarray(total.clip(0, 255).astype(np.uint8))
