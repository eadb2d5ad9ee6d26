"""Prepares CIFAR-10 for TFDS, without TensorFlow.

The official TFDS builder unpacks its download and encodes its images with
TensorFlow. A subclass does both in Python here and leaves the rest to TFDS, so
that `tfds.data_source('cifar10')` reads the result anywhere.
"""

import contextlib
import io
import pathlib
import queue
import threading

import numpy as np

from gswinrmt_jax.data import cifar10_archive, prepared
from gswinrmt_jax.errors import UserError

# Alphabetical, which for CIFAR-10 is also the order of the labels.
CLASSES = tuple(
    'airplane automobile bird cat deer dog frog horse ship truck'.split()
)
# Of the original train split's pixels / 255, as commonly quoted.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

# TFDS itself would try an unreachable host for minutes.
ANSWER_SECONDS = 6.0


def prepare(data_dir: str, archive: str | None = None) -> pathlib.Path:
  """Writes the TFDS data set `cifar10` below `data_dir`.

  What is found there is always whole, and a failure or Ctrl-C leaves nothing.

  Args:
    data_dir: The TFDS data directory; empty for TFDS's own default.
    archive: A local cifar-10-binary.tar.gz or cifar-10-python.tar.gz; without
      it the former is downloaded.

  Returns:
    The data set's directory, prepared now or before.

  Raises:
    UserError: If the archive, the network or the directory will not do.
  """
  final = dataset_dir(data_dir)
  if open_prepared(data_dir):
    print(f'cifar10: already prepared in {final}, nothing done')
    return final
  if archive is not None:
    cifar10_archive.say_if_not_original(pathlib.Path(archive))
  print(f'cifar10: preparing {final}', flush=True)
  prepared.build(final, lambda work: _build(work, archive))
  print(f'cifar10: prepared {final}')
  return final


def dataset_dir(data_dir: str) -> pathlib.Path:
  """Returns where TFDS keeps this data set; empty means TFDS's default."""
  from tensorflow_datasets.image_classification import cifar

  return prepared.directory('cifar10', str(cifar.Cifar10.VERSION), data_dir)


def is_prepared(data_dir: str) -> bool:
  """Returns whether the data set is there; UserError if it is half written."""
  return open_prepared(data_dir) is not None


def open_prepared(data_dir: str):
  """Returns the TFDS builder of the prepared data set, None if there is none.

  Raises:
    UserError: If the directory is there but half written, or holds another
      format than array_record, the one read without TensorFlow.
  """
  from tensorflow_datasets.image_classification import cifar

  version, splits = str(cifar.Cifar10.VERSION), cifar10_archive.IMAGES_PER_CLASS
  return prepared.open_prepared('cifar10', version, data_dir, tuple(splits))


def _build(work: pathlib.Path, archive: str | None) -> None:
  """Writes cifar10/VERSION below `work`."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.image_classification import cifar
  import tqdm

  class Builder(cifar.Cifar10, skip_registration=True):
    """The official builder but for where its examples come from."""

    name = 'cifar10'

    def _split_generators(self, dl_manager):
      path = archive or _download(dl_manager, self._cifar_info.url)
      tfds.display_progress_bar(False)  # Four nested bars; ours says it all.
      self.info.features['label'].names = CLASSES
      return {
          split: self._generate_examples(split, *records)
          for split, records in cifar10_archive.read(path).items()
      }

    def _generate_examples(self, split, images, labels):
      # No bar where there is no terminal to redraw it.
      for index in tqdm.trange(
          len(labels), desc=f'cifar10 {split}', unit='img', disable=None
      ):
        # TFDS orders the records by a hash of this key, the official one.
        yield index, {
            'id': f'{split}_{index:05d}',
            'image': _encode_png(images[index]),
            'label': int(labels[index]),
        }

  builder = Builder(data_dir=work, file_format='array_record')
  config = tfds.download.DownloadConfig(
      try_download_gcs=False, force_checksums_validation=True
  )
  try:
    # What TFDS prints names the hidden directory, soon to be gone.
    with contextlib.redirect_stdout(io.StringIO()):
      builder.download_and_prepare(download_config=config)
  finally:
    tfds.display_progress_bar(True)


def _encode_png(planes: np.ndarray) -> bytes:
  """Returns uint8 [3 h w] as PNG; an array TFDS would encode by TensorFlow."""
  import PIL.Image

  png = io.BytesIO()
  PIL.Image.fromarray(planes.transpose(1, 2, 0)).save(png, 'PNG')
  return png.getvalue()


def _download(dl_manager, url: str) -> str:
  try:
    _await_answer(url)
    return dl_manager.download(url)
  except Exception as error:
    reason = str(error).strip().split('\n')[0]
    raise UserError(
        f'cifar10 is not prepared and cannot be downloaded ({reason}); get '
        f'{url} by other means and run `gswinrmt prepare cifar10 --archive '
        'FILE`, or name a prepared directory by --config.data.dir or '
        'TFDS_DATA_DIR'
    ) from error


def _await_answer(url: str) -> None:
  """Raises OSError unless the host starts to send `url` in a few seconds.

  Asked with the library that TFDS downloads with, hence through the same
  proxies and certificates. In a thread, since the look-up of a host's name
  heeds no time limit.
  """
  import requests

  answers = queue.SimpleQueue()

  def ask():
    try:
      with requests.get(url, stream=True, timeout=ANSWER_SECONDS) as response:
        answers.put('' if response.ok else f'HTTP {response.status_code}')
    except Exception as error:
      # Its text is three nested exceptions long.
      answers.put(type(error).__name__)

  threading.Thread(target=ask, daemon=True).start()
  try:
    problem = answers.get(timeout=ANSWER_SECONDS)
  except queue.Empty:
    problem = f'no answer in {ANSWER_SECONDS:g} s'
  if problem:
    raise OSError(problem)
