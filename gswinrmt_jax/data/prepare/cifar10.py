"""Prepares CIFAR-10 for TFDS, without TensorFlow.

The official TFDS builder unpacks the download and encodes images with
TensorFlow. The subclass here does both in Python and leaves the rest to TFDS,
so that `tfds.data_source('cifar10')` reads the result anywhere.
"""

import contextlib
import gzip
import io
import os
import pathlib
import pickle
import tarfile
import tempfile

import numpy as np
import PIL.Image

from gswinrmt_jax.data import cifar10, parallel, prepared
from gswinrmt_jax.data.prepare import writer
from gswinrmt_jax.errors import UserError

IMAGES_PER_CLASS = {'train': 5000, 'test': 1000}
BATCHES = {
    'train': tuple(f'data_batch_{i}' for i in range(1, 6)),
    'test': ('test_batch',),
}
# TFDS itself would try an unreachable host for minutes.
ANSWER_SECONDS = 6.0

_RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the planes R, G and B


def prepare_if_missing(name: str, data_dir: str) -> None:
  """Downloads and writes CIFAR-10 if a run needs it and it is missing.

  Raises:
    UserError: As in `prepare`.
  """
  if name == 'cifar10' and prepared.open_newest(name, data_dir) is None:
    prepare(data_dir)


def prepare(
    data_dir: str, archive: str | None = None, *, replace: bool = False
) -> pathlib.Path:
  """Writes the TFDS data set `cifar10` and returns its directory.

  Args:
    data_dir: As in `datasets.info`.
    archive: A local cifar-10-binary.tar.gz or cifar-10-python.tar.gz; None
      downloads the former.
    replace: Whether to write again what is there.

  Raises:
    UserError: If the archive cannot be used, or downloading or writing fails.
  """
  from tensorflow_datasets.image_classification import cifar

  version = str(cifar.Cifar10.VERSION)
  final = prepared.data_root(data_dir) / 'cifar10' / version

  def write(folder):
    print(f'cifar10: preparing {final}', flush=True)
    _build(folder, version, archive)

  if writer.write_whole(final, write, replace=replace):
    print(f'cifar10: prepared {final}')
  else:
    writer.check_prepared(final, {})
  return final


def _build(folder, version, archive):
  import tensorflow_datasets as tfds
  from tensorflow_datasets.image_classification import cifar

  class Builder(cifar.Cifar10, skip_registration=True):
    """The official builder, with examples read without TensorFlow."""

    name = 'cifar10'

    def _split_generators(self, dl_manager):
      path = archive or _download(dl_manager, self._cifar_info.url)
      tfds.display_progress_bar(False)  # One bar is enough: TFDS nests four.
      self.info.features['label'].names = cifar10.CLASSES
      return {
          split: self._generate_examples(split, *records)
          for split, records in _read(path).items()
      }

    def _generate_examples(self, split, images, labels):
      rows = range(len(labels))
      for index in parallel.with_bar(rows, f'cifar10 {split}', len(labels)):
        # The official key: TFDS orders the records by its hash.
        yield index, {
            'id': f'{split}_{index:05d}',
            'image': _encode_png(images[index]),
            'label': int(labels[index]),
        }

  config = tfds.download.DownloadConfig(
      try_download_gcs=False, force_checksums_validation=True
  )
  # Hidden next to `folder`. If this process is killed, later runs remove both.
  with tempfile.TemporaryDirectory(
      prefix='.work.', suffix='.part', dir=folder.parent
  ) as work:
    builder = Builder(data_dir=work, file_format='array_record')
    try:
      # TFDS would print the name of the hidden directory.
      with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(download_config=config)
    finally:
      tfds.display_progress_bar(True)
    os.replace(pathlib.Path(work) / 'cifar10' / version, folder)


def _encode_png(planes):
  """Encodes uint8 [3 h w] as PNG; TFDS would use TensorFlow."""
  png = io.BytesIO()
  PIL.Image.fromarray(planes.transpose(1, 2, 0)).save(png, 'PNG')
  return png.getvalue()


def _download(dl_manager, url):
  import requests

  try:
    # TFDS downloads with the same library, hence the same proxies and
    # certificates.
    with requests.get(url, stream=True, timeout=ANSWER_SECONDS) as response:
      problem = '' if response.ok else f'HTTP {response.status_code}'
    if not problem:
      return dl_manager.download(url)
  except requests.RequestException as error:
    problem = type(error).__name__  # The text has three nested exceptions.
  except Exception as error:
    problem = str(error).strip().split('\n')[0]
  raise UserError(
      f'cifar10 is not prepared and cannot be downloaded ({problem}); get '
      f'{url} by other means and run `gswinrmt prepare cifar10 --archive '
      'FILE`, or name the folder of a prepared copy by --config.data.dir or '
      'TFDS_DATA_DIR'
  )


def _read(path):
  """Returns uint8 images [n 3 32 32] and labels [n] of an archive, by split."""
  try:
    batches = _read_batches(path)
  except Exception as error:
    # gzip, tarfile and pickle raise a dozen types on bad bytes.
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
        f'cannot read the archive {path} ({reason}); is it complete?'
    ) from error
  records = {}
  for split, names in BATCHES.items():
    missing = [name for name in names if name not in batches]
    if missing:
      raise UserError(
          f'{path} is neither cifar-10-binary.tar.gz nor '
          f'cifar-10-python.tar.gz: {missing[0]} is not in it'
      )
    parts = zip(*(batches[name] for name in names), strict=True)
    images, labels = map(np.concatenate, parts)
    found = np.bincount(labels, minlength=10).tolist()
    wanted = IMAGES_PER_CLASS[split]
    if found != [wanted] * 10:
      raise UserError(
          f'{path} is not complete: the classes of {split} have {found} '
          f'images, not {wanted} each'
      )
    records[split] = images, labels
  return records


def _read_batches(path):
  """Returns the batches in an archive by name; unpacks nothing to disk."""
  wanted = {name for names in BATCHES.values() for name in names}
  batches = {}
  with gzip.open(path) as stream:
    with tarfile.open(fileobj=stream, mode='r|') as tar:
      for member in tar:
        name = pathlib.PurePosixPath(member.name)
        if member.isfile() and name.stem in wanted:
          content = tar.extractfile(member).read()
          parse = _parse_binary if name.suffix == '.bin' else _parse_python
          batches[name.stem] = parse(content)
    while stream.read(2**20):  # Reaches the checksum of gzip at the end.
      pass
  return batches


def _parse_binary(content):
  rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
  return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _parse_python(content):
  batch = _ArrayUnpickler(io.BytesIO(content), encoding='bytes').load()
  if not isinstance(batch, dict) or not {b'data', b'labels'} <= batch.keys():
    raise pickle.UnpicklingError('a batch is not a dict of data and labels')
  labels = np.array(batch[b'labels'], np.int64)
  return batch[b'data'].reshape(len(labels), 3, 32, 32), labels


# The names in the array pickles of NumPy in 2009, with replacements that can
# only create an empty uint8 array and its dtype.
_PICKLED_NAMES = {
    ('numpy.core.multiarray', '_reconstruct'): lambda *_: np.empty(0, np.uint8),
    ('numpy', 'ndarray'): None,  # An argument of `_reconstruct`, never called.
    ('numpy', 'dtype'): lambda *_: np.dtype(np.uint8, copy=True),
}


class _ArrayUnpickler(pickle.Unpickler):
  """Loads plain containers and uint8 arrays; refuses every other name."""

  def find_class(self, module: str, name: str):
    if (module, name) not in _PICKLED_NAMES:
      raise pickle.UnpicklingError(f'refused to load {module}.{name}')
    return _PICKLED_NAMES[module, name]
