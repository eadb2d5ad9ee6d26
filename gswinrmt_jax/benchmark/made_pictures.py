"""Pictures that are made up, prepared as a data set of one's own."""

import concurrent.futures
import pathlib
import tempfile

import numpy as np
from PIL import Image

from gswinrmt_jax.data import folder_builder, machine, own_folder

NAME = 'made_up'  # of the data set
_QUALITY = 95  # with `_texture`, files of about ImageNet's size


def prepare(
    folder: pathlib.Path, count: int, *, classes: int, width: int, height: int
) -> float:
  """Makes JPEG files and prepares them below a folder as the data set `NAME`.

  It has one split, 'train'; the files themselves are not kept.

  Args:
    folder: The TFDS data directory to write into.
    count: How many pictures; each has its class in turn.
    classes: How many classes, no more than pictures.
    width: Of each picture, in pixels.
    height: Likewise.

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

    with concurrent.futures.ThreadPoolExecutor(machine.cores()) as pool:
      sizes = list(pool.map(make, range(count)))
    folder_builder.prepare(
        NAME, lambda: own_folder.find(pictures), data_dir=str(folder)
    )
  return sum(sizes) / count


def _texture(rng, width, height):
  """Returns noise of every scale, the finer the weaker, as in photographs."""
  total = np.full((height, width, 3), 128.0)
  for cells in (4, 16, 64, 256):
    noise = rng.integers(0, 256, (cells, cells, 3), np.uint8)
    scaled = Image.fromarray(noise).resize((width, height), Image.BICUBIC)
    total += (np.asarray(scaled) - 128.0) / cells**0.3
  return Image.fromarray(total.clip(0, 255).astype(np.uint8))
