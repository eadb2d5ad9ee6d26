"""Tiny data sets of image files in TFDS's format, for tests of reading."""

import io
import logging
import pathlib

import numpy as np
import PIL.Image
import tensorflow_datasets as tfds

CLASSES = ('ant', 'bee', 'cat')


def picture(seed: int, size: tuple[int, int]) -> PIL.Image.Image:
  """Returns soft noise of (width, height), which JPEG hardly changes."""
  rng = np.random.default_rng(seed)
  small = rng.integers(0, 256, (4, 5, 3), np.uint8)
  return PIL.Image.fromarray(small).resize(size, PIL.Image.Resampling.BICUBIC)


def encoded(seed: int, size: tuple[int, int], form: str = 'JPEG') -> bytes:
  """Returns the image as the bytes of a file."""
  buffer = io.BytesIO()
  picture(seed, size).save(buffer, form)
  return buffer.getvalue()


def examples(
    count: int, seed: int = 0, size: tuple[int, int] | None = None
) -> list[tuple[str, bytes, int]]:
  """Returns (file name, bytes, label) of images; without `size`, sizes vary."""
  rng = np.random.default_rng(seed)
  made = []
  for index in range(count):
    shape = size or tuple(int(side) for side in rng.integers(20, 60, 2))
    label = index % len(CLASSES)
    name = f'{CLASSES[label]}/{seed}_{index}.jpg'
    made.append((name, encoded(1000 * seed + index, shape), label))
  return made


def write(
    root: pathlib.Path,
    splits: dict[str, list[tuple[str, bytes, int]]],
    name: str = 'own',
    classes: tuple[str, ...] = CLASSES,
) -> pathlib.Path:
  """Writes a data set below `root` and returns its directory."""
  labels = tfds.features.ClassLabel(names=classes)
  dataset_name = name

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('1.0.0')
    name = dataset_name
    pkg_dir_path = root

    def _info(self):
      features = {
          'image': tfds.features.Image(),
          'label': labels,
          'file_name': tfds.features.Text(),
      }
      return tfds.core.DatasetInfo(
          builder=self, features=tfds.features.FeaturesDict(features)
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split) for split in splits}

    def _generate_examples(self, split):
      for file_name, image, label in splits[split]:
        yield (
            file_name,
            {'image': image, 'label': label, 'file_name': file_name},
        )

  tfds.display_progress_bar(False)
  logging.getLogger('absl').setLevel(logging.ERROR)
  builder = Builder(data_dir=root, file_format='array_record')
  builder.download_and_prepare()
  return pathlib.Path(builder.data_path)
