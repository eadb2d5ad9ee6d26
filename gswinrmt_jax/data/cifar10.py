"""Prepares CIFAR-10 for TFDS, without TensorFlow.

The official TFDS builder unpacks its download and encodes its images with
TensorFlow. A subclass does both in Python here and leaves the rest to TFDS, so
that `tfds.data_source('cifar10')` reads the result anywhere.
"""

import contextlib
import gzip
import hashlib
import io
import os
import pathlib
import pickle
import queue
import tarfile
import tempfile
import threading

import numpy as np

from gswinrmt_jax.errors import UserError

# Alphabetical, which for CIFAR-10 is also the order of the labels.
CLASSES = tuple(
    'airplane automobile bird cat deer dog frog horse ship truck'.split()
)
# Of the original train split's pixels / 255, as commonly quoted.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

# Of the original archives: binary (TFDS has it too) and python.
SHA256 = (
    'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',
    '6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce',
)
IMAGES_PER_CLASS = {'train': 5000, 'test': 1000}
BATCHES = {
    'train': tuple(f'data_batch_{i}' for i in range(1, 6)),
    'test': ('test_batch',),
}
# TFDS itself would try an unreachable host for minutes.
ANSWER_SECONDS = 6.0

_RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the planes R, G and B
# Per split: uint8 images [n 3 32 32] and their labels [n].
Records = tuple[np.ndarray, np.ndarray]


def prepare(data_dir: str, archive: str | None = None) -> pathlib.Path:
  """Writes the TFDS data set `cifar10` below `data_dir`.

  It is built in a hidden directory beside its place and then renamed, so what
  is found there is always whole, and a failure or Ctrl-C leaves nothing.

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
    _say_if_not_original(pathlib.Path(archive))
  root = final.parent.parent
  try:
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.cifar10-', dir=root) as work:
      print(f'cifar10: preparing {final}', flush=True)
      _build(work, archive)
      final.parent.mkdir(exist_ok=True)
      os.rename(pathlib.Path(work, *final.parts[-2:]), final)
  except (OSError, RuntimeError) as error:  # array_record raises the latter.
    if open_prepared(data_dir):  # Another process was faster.
      return final
    reason = getattr(error, 'strerror', None) or str(error).split('\n')[0]
    raise UserError(
        f'cannot write the data directory {root}: {reason}; choose another '
        'with --dir, --config.data.dir or TFDS_DATA_DIR'
    ) from error
  print(f'cifar10: prepared {final}')
  return final


def dataset_dir(data_dir: str) -> pathlib.Path:
  """Returns where TFDS keeps this data set; empty means TFDS's default."""
  from tensorflow_datasets.image_classification import cifar

  root = data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  root = pathlib.Path(root).expanduser().absolute()
  return root / 'cifar10' / str(cifar.Cifar10.VERSION)


def is_prepared(data_dir: str) -> bool:
  """Returns whether the data set is there; UserError if it is half written."""
  return open_prepared(data_dir) is not None


def open_prepared(data_dir: str):
  """Returns the TFDS builder of the prepared data set, None if there is none.

  Raises:
    UserError: If the directory is there but half written, or holds another
      format than array_record, the one read without TensorFlow.
  """
  import tensorflow_datasets as tfds

  final = dataset_dir(data_dir)
  if not os.path.exists(final):
    return None
  try:
    builder = tfds.builder_from_directory(final)
    splits = {name: builder.info.splits[name] for name in IMAGES_PER_CLASS}
    shards = [path for split in splits.values() for path in split.filepaths]
    missing = [path.name for path in shards if not path.exists()]
  except Exception as error:
    # TFDS says a missing or broken description in many ways.
    missing = [str(error).strip().split('\n')[0] or type(error).__name__]
  if missing:
    raise UserError(
        f'{final} is half written or damaged ({missing[0]}); remove that '
        'directory and run `gswinrmt prepare cifar10`'
    )
  if builder.info.file_format.value != 'array_record':
    raise UserError(
        f'{final} holds {builder.info.file_format.value} files, which only '
        'TensorFlow reads; choose another directory with --dir, '
        '--config.data.dir or TFDS_DATA_DIR and prepare there'
    )
  return builder


def read_archive(path: pathlib.Path) -> dict[str, Records]:
  """Returns the records of cifar-10-binary.tar.gz or cifar-10-python.tar.gz.

  Nothing is unpacked to disk, and of the pickles in the python archive only
  arrays and plain containers are loaded.

  Raises:
    UserError: If the file is unreadable, truncated, corrupt or incomplete.
  """
  try:
    files = _read_batch_files(path)
    binary = any(name.endswith('.bin') for name in files)
    suffix, parse = ('.bin', _parse_binary) if binary else ('', _parse_python)
    missing = [
        name + suffix
        for names in BATCHES.values()
        for name in names
        if name + suffix not in files
    ]
    records = {}
    for split, names in BATCHES.items() if not missing else ():
      parts = [parse(files[name + suffix]) for name in names]
      images, labels = map(np.concatenate, zip(*parts, strict=True))
      records[split] = images, labels
    found = {k: np.bincount(v[1], minlength=10) for k, v in records.items()}
  except Exception as error:
    # gzip, tarfile and pickle fail on bad bytes with a dozen exceptions.
    raise UserError(
        f'cannot read the archive {path} '
        f'({getattr(error, "strerror", None) or error}); is it whole?'
    ) from error
  if missing:
    raise UserError(
        f'{path} is neither cifar-10-binary.tar.gz nor '
        f'cifar-10-python.tar.gz: {missing[0]} is not in it'
    )
  for split, count in IMAGES_PER_CLASS.items():
    if found[split].tolist() != [count] * len(CLASSES):
      raise UserError(
          f'{path} is not complete: {split} holds {found[split].tolist()} '
          f'images a class, not {count} of each'
      )
  return records


def _read_batch_files(path: pathlib.Path) -> dict[str, bytes]:
  wanted = {name for names in BATCHES.values() for name in names}
  files = {}
  with gzip.open(path) as stream:
    with tarfile.open(fileobj=stream, mode='r|') as tar:
      for member in tar:
        name = pathlib.PurePosixPath(member.name).name
        if member.isfile() and name.removesuffix('.bin') in wanted:
          files[name] = tar.extractfile(member).read()
    while stream.read(2**20):  # To the end, where gzip keeps its checksum.
      pass
  return files


def _parse_binary(content: bytes) -> Records:
  rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
  return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _parse_python(content: bytes) -> Records:
  batch = _ArrayUnpickler(io.BytesIO(content), encoding='bytes').load()
  if not isinstance(batch, dict) or not {b'data', b'labels'} <= batch.keys():
    raise pickle.UnpicklingError('a batch is not a dict of data and labels')
  labels = np.array(batch[b'labels'], np.int64)
  return batch[b'data'].reshape(len(labels), 3, 32, 32), labels


# The names by which numpy of 2009 pickled an array, and what they stand for
# here: functions that can do nothing but begin an empty array of bytes.
_PICKLED_NAMES = {
    ('numpy.core.multiarray', '_reconstruct'): lambda *_: np.empty(0, np.uint8),
    ('numpy', 'ndarray'): None,  # An argument of the first, never called.
    ('numpy', 'dtype'): lambda *_: np.dtype(np.uint8, copy=True),
}


class _ArrayUnpickler(pickle.Unpickler):
  """Loads plain containers and uint8 arrays; refuses every other name."""

  def find_class(self, module: str, name: str):
    if (module, name) not in _PICKLED_NAMES:
      raise pickle.UnpicklingError(f'refused to load {module}.{name}')
    return _PICKLED_NAMES[module, name]


def _say_if_not_original(archive: pathlib.Path) -> None:
  try:
    with archive.open('rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
  except OSError as error:
    raise UserError(
        f'cannot read the archive {archive}: {error.strerror}'
    ) from error
  if digest not in SHA256:
    print(
        f'cifar10: {archive} is not the original archive (SHA-256 {digest}); '
        'results may differ from those on the original'
    )


def _build(work: str, archive: str | None) -> None:
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
          for split, records in read_archive(path).items()
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
