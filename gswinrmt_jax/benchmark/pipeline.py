"""Training with its input pipeline, beside training on one repeated batch."""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import pathlib
import tempfile
from typing import Any

import numpy as np
from PIL import Image

from gswinrmt_jax.benchmark import measure, record
from gswinrmt_jax.benchmark.worker import Spec
from gswinrmt_jax.data import parallel
from gswinrmt_jax.data.prepare import class_folders, writer
from gswinrmt_jax.errors import UserError

DATA = 'synthetic'  # name of the data set
SMALL = 32  # pixels; such images are stored at the size they are trained on
EPOCH = 50_000  # images; Mini-ImageNet's training split has as many
_STORED = (500, 375)  # a common size of ImageNet's pictures
_QUALITY = 95  # gives files of about ImageNet's size
_HEAD = ('', 'ms/step', '±', 'img/s', 'of without', f's/{EPOCH:,}', 'peak GB')


@dataclasses.dataclass(frozen=True)
class Pipelines:
  """The input pipelines to be measured.

  Attributes:
    storages: Values of `config.data.storage`.
    images: How many synthetic images.
    workers: Processes that decode; None for the recipe's number.
  """

  storages: Sequence[str]
  images: int
  workers: int | None

  def measure(
      self,
      bench: measure.Bench,
      specs: Sequence[Spec],
      say: Callable[[str], None],
  ) -> dict[str, Any]:
    """Measures each model without input pipeline, then with each storage.

    Raises:
      UserError: If there are fewer images than classes.
    """
    groups = []
    for spec in specs:
      classes, size = spec['classes'], spec['image_size']
      if self.images < classes:
        raise UserError(
            f'--images {self.images}: there are {classes} classes, each of '
            'which needs one; --classes takes fewer'
        )
      width, height = (size, size) if size <= SMALL else _STORED
      with tempfile.TemporaryDirectory(prefix='gswinrmt_') as folder:
        make_data(
            pathlib.Path(folder),
            self.images,
            classes=classes,
            width=width,
            height=height,
        )
        found = self.specs(spec, folder)
        groups.append(record.group(bench, found, say, rows=rows, table=table))
    return {'groups': groups}

  def specs(self, spec: Spec, folder: str) -> dict[str, Spec]:
    """Returns the specs of a model by name; the first has no pipeline."""
    shared = {**spec, 'dir': folder, 'workers': self.workers}
    storages = {'without': None, **{name: name for name in self.storages}}
    return {
        f'{spec["model"]}, {name}': {**shared, 'storage': storage}
        for name, storage in storages.items()
    }


def make_data(
    folder: pathlib.Path, count: int, *, classes: int, width: int, height: int
) -> float:
  """Makes JPEG files and prepares them as the data set `DATA`, split 'train'.

  Args:
    folder: The TFDS data directory.
    count: How many images, each class in turn.
    classes: How many classes, at most `count`.
    width: In pixels.
    height: In pixels.

  Returns:
    The mean size of a file in bytes.
  """
  with tempfile.TemporaryDirectory(dir=folder) as made:
    pictures = pathlib.Path(made)
    names = [f'class{number:04}' for number in range(classes)]
    for name in names:
      (pictures / 'train' / name).mkdir(parents=True)

    def make(number):
      path = pictures / 'train' / names[number % classes] / f'{number}.jpg'
      rng = np.random.default_rng(number)
      _texture(rng, width, height).save(path, quality=_QUALITY)
      return path.stat().st_size

    with concurrent.futures.ThreadPoolExecutor(parallel.cores()) as pool:
      sizes = list(pool.map(make, range(count)))
    writer.prepare(
        DATA,
        lambda: class_folders.find_and_divide(pictures),
        data_dir=str(folder),
    )
  return sum(sizes) / count


def _texture(rng, width, height):
  """Returns noise at every scale, weaker the finer it is, as in photographs."""
  total = np.full((height, width, 3), 128.0)
  for cells in (4, 16, 64, 256):
    noise = rng.integers(0, 256, (cells, cells, 3), np.uint8)
    scaled = Image.fromarray(noise).resize((width, height), Image.BICUBIC)
    total += (np.asarray(scaled) - 128.0) / cells**0.3
  return Image.fromarray(total.clip(0, 255).astype(np.uint8))


def rows(
    outcomes: Sequence[measure.Measured], rates: Mapping[str, float]
) -> list[dict[str, Any]]:
  """Returns `record.rows`, a call being one training step.

  Each also has

  - 'of_without': images per second over those of the first program
  - 'seconds_of_50000_images'
  """
  found = record.rows(outcomes, rates)
  for row, outcome in zip(found, outcomes, strict=True):
    if outcome.timing:
      row['of_without'] = outcome.times_as_fast_as(outcomes[0])
      row['seconds_of_50000_images'] = EPOCH / row['images_per_second']
  return found


def table(found: Sequence[record.Row]) -> str:
  """Returns rows as a Markdown table, with a line per failure below."""
  return record.lay_out(found, _HEAD, _cells)


def _cells(row):
  of_without = row['of_without']
  return (
      row['program'],
      f'{row["milliseconds"]:.4g}',
      f'{row["spread"]:.1%}',
      f'{row["images_per_second"]:.4g}',
      f'{of_without:.3f}' if of_without else '',
      f'{row["seconds_of_50000_images"]:,.1f}',
      record.peak(row),
  )
