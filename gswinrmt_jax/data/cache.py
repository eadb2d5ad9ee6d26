"""Decoded images kept in files, for data sets that memory does not hold.

    FOLDER/SPLIT_HEIGHTxWIDTH_cropCROP_HASH/
      image.npy    uint8 [n h w 3], mapped to memory
      label.npy    int32 [n]
      cache.json   checksums of the labels and of every chunk of images

FOLDER is `decoded` in the data set's own directory or, where that cannot be
written to, below ~/.cache. The hash is of all that the images depend on.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import zlib

import numpy as np
import PIL

from gswinrmt_jax.data import machine, prepared, records
from gswinrmt_jax.data.records import Arrays, Decoded
from gswinrmt_jax.data.sources import TfdsSource
from gswinrmt_jax.errors import UserError

_VERSION = 2  # of what is done to an image; part of the hash
_CHECKED = 8  # chunks that are read again on opening
_INSTEAD = 'or set config.data.storage to memory or decode'


def load(decoded: Decoded) -> Arrays:
  """Returns the records from their cache, which is made if it is not there.

  Processes that need the same cache at once wait for the first of them.

  Raises:
    UserError: If a record cannot be decoded, there is no room, or a cache that
      was made has changed.
  """
  name = _name(decoded)
  places = _places(decoded.source)
  for place in places:
    if (place / name).exists():
      return _open(place / name, decoded)
  place = _first_writable(places)
  with prepared.locked(place / f'.{name}.lock') as alone:
    if not (place / name).exists():
      _make(place, name, decoded, alone)
  return _open(place / name, decoded)


def _name(decoded):
  """Returns a name that tells caches apart, for people and by its hash."""
  size = decoded.size or decoded.image_shape[:2]
  made_of = (
      _VERSION,
      PIL.__version__,  # Decoders and kernels may change with it.
      decoded.source.fingerprint(),
      size,
      decoded.crop,
  )
  digest = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
  split = ''.join(c if c.isalnum() else '-' for c in decoded.source.split)
  height, width = size
  return f'{split}_{height}x{width}_crop{decoded.crop:.4g}_{digest}'


def _places(source: TfdsSource) -> list[pathlib.Path]:
  user = machine.cache_folder() / source.folder.parent.name
  return [source.folder / 'decoded', user]


def _first_writable(places):
  for place in places:
    with contextlib.suppress(OSError):
      place.mkdir(parents=True, exist_ok=True)
      with tempfile.TemporaryFile(dir=place):
        return place
  raise UserError(
      f'decoded images can be written neither to {places[0]} nor to '
      f'{places[1]}: set XDG_CACHE_HOME, {_INSTEAD}'
  )


def _make(place, name, decoded, alone):
  """Writes a cache beside its place and moves it there when it is whole.

  What a killed process left is removed if none but this one can be at work.
  """
  shape = (len(decoded), *decoded.image_shape)
  size = int(np.prod(shape))
  for path in place.glob(f'.{name}.*/') if alone else ():
    shutil.rmtree(path, ignore_errors=True)
  if size > shutil.disk_usage(place).free:
    raise UserError(
        f'no room in {place} for {size / 1e9:.1f} GB of decoded images: set '
        f'XDG_CACHE_HOME, {_INSTEAD}'
    )
  print(
      f'Decoding {shape[0]:,} images of {decoded.source.split!r} once, to '
      f'{place / name} ({size / 1e9:.1f} GB).',
      flush=True,
  )
  try:
    with tempfile.TemporaryDirectory(prefix=f'.{name}.', dir=place) as work:
      whole = pathlib.Path(work) / 'whole'
      whole.mkdir()
      _write(whole, shape, decoded)
      _sync(*whole.iterdir(), whole)
      whole.rename(place / name)
    _sync(place)
  except OSError as error:
    if (place / name).exists():  # A process on another machine was faster.
      return
    raise UserError(
        f'cannot write decoded images to {place}: {error.strerror}; make '
        f'room, {_INSTEAD}'
    ) from error


def _write(folder, shape, decoded):
  labels, sums = [], []
  with (folder / 'image.npy').open('wb') as file:
    np.lib.format.write_array_header_1_0(
        file, {'descr': '|u1', 'fortran_order': False, 'shape': shape}
    )
    for chunk in records.decode_all(decoded):
      file.write(chunk['image'].data)
      sums.append(zlib.crc32(chunk['image']))
      labels.append(chunk['label'])
  label = np.concatenate(labels)
  np.save(folder / 'label.npy', label)
  written = {
      'image_crc32': sums,
      'label_crc32': zlib.crc32(label),
      'chunk': len(labels[0]),
  }
  (folder / 'cache.json').write_text(json.dumps(written))


def _sync(*paths):
  """Waits until files and folders are on the disk: a rename may be first."""
  for path in paths:
    descriptor = os.open(path, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


def _open(folder, decoded):
  """Maps a cache to memory and checks it: all but the pixels, some of those."""
  shape = (len(decoded), *decoded.image_shape)
  try:
    written = json.loads((folder / 'cache.json').read_text())
    image = np.load(folder / 'image.npy', mmap_mode='r')
    label = np.load(folder / 'label.npy')
    whole = (
        (image.shape, image.dtype) == (shape, np.uint8)
        and (label.shape, label.dtype) == (shape[:1], np.int32)
        and zlib.crc32(label) == written['label_crc32']
        and _sample_is_whole(image, written['chunk'], written['image_crc32'])
    )
    problem = 'it changed since it was written'
  except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
    whole, problem = False, str(error).split('\n')[0]
  if not whole:
    raise UserError(
        f'{folder} is damaged ({problem}): remove that directory, and the '
        'images are decoded anew'
    )
  return Arrays(image, label, decoded.source)


def _sample_is_whole(image, chunk, sums):
  """Compares checksums of a few chunks, the first and the last among them."""
  some = np.linspace(0, len(sums) - 1, min(_CHECKED, len(sums))).astype(int)
  return all(
      zlib.crc32(image[i * chunk : (i + 1) * chunk]) == sums[i] for i in some
  )
