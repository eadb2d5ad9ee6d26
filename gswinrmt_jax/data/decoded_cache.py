"""Cache of decoded images on disk, for data sets too large for memory.

    FOLDER/SPLIT_HEIGHTxWIDTH_cropCROP_HASH/
      image.npy    uint8 [n h w 3], memory-mapped
      label.npy    int32 [n]
      cache.json   checksums of the labels and of every chunk of images

FOLDER is `decoded` in the data set's directory or, if that is not writable,
below ~/.cache. The hash covers everything that the images depend on.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
import zlib

import numpy as np
import PIL

from gswinrmt_jax import files
from gswinrmt_jax.data import records
from gswinrmt_jax.data.records import Arrays, Decoded
from gswinrmt_jax.errors import UserError

_VERSION = 2  # of the decoding; part of the hash
_CHECKED = 8  # chunks whose checksums are verified on opening
_INSTEAD = 'or set config.data.storage to memory or decode'


def load(decoded: Decoded) -> Arrays:
  """Returns the records from their cache; writes the cache if it is missing.

  If several processes need a missing cache, one writes it and the others wait.

  Raises:
    UserError: If a record cannot be decoded, the disk is full, or a cache has
      changed since it was written.
  """
  name = _name(decoded)
  places = (
      decoded.source.folder / 'decoded',
      files.user_cache() / decoded.source.folder.parent.name,
  )
  for place in places:
    if (place / name).exists():
      return _open(place / name, decoded)
  place = _first_writable(places)
  with files.locked(place / '.lock', wait=True) as held:
    if held:
      files.remove_leftovers(place)
    if not (place / name).exists():
      _write(place / name, decoded)
  return _open(place / name, decoded)


def _name(decoded):
  """Returns the name of the cache: a readable part and a hash."""
  height, width, _ = decoded.image_shape
  depends_on = (
      _VERSION,
      PIL.__version__,  # Its decoders and resampling kernels may change.
      decoded.source.fingerprint(),
      (height, width),
      decoded.crop,
  )
  digest = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:16]
  split = ''.join(c if c.isalnum() else '-' for c in decoded.source.split)
  return f'{split}_{height}x{width}_crop{decoded.crop:.4g}_{digest}'


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


def _write(folder, decoded):
  shape = (len(decoded), *decoded.image_shape)
  size = int(np.prod(shape))
  if size > shutil.disk_usage(folder.parent).free:
    raise UserError(
        f'no room in {folder.parent} for {size / 1e9:.1f} GB of decoded '
        f'images: set XDG_CACHE_HOME, {_INSTEAD}'
    )
  print(
      f'Decoding {shape[0]:,} images of {decoded.source.split!r} once, to '
      f'{folder} ({size / 1e9:.1f} GB).',
      flush=True,
  )
  try:
    with files.replaced(folder) as part:
      part.mkdir()
      _write_arrays(part, shape, decoded)
  except OSError as error:
    if not folder.exists():  # Else a process on another machine was faster.
      raise UserError(
          f'cannot write decoded images to {folder.parent}: {error.strerror}; '
          f'make room, {_INSTEAD}'
      ) from error


def _write_arrays(folder, shape, decoded):
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


def _open(folder, decoded):
  """Memory-maps a cache and verifies it; of the pixels, only a sample."""
  shape = (len(decoded), *decoded.image_shape)
  try:
    written = json.loads((folder / 'cache.json').read_text())
    image = np.load(folder / 'image.npy', mmap_mode='r')
    label = np.load(folder / 'label.npy')
    if not (
        (image.shape, image.dtype) == (shape, np.uint8)
        and (label.shape, label.dtype) == (shape[:1], np.int32)
        and zlib.crc32(label) == written['label_crc32']
        and _sample_is_whole(image, written['chunk'], written['image_crc32'])
    ):
      raise ValueError('it changed since it was written')
  except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
    problem = str(error).split('\n')[0]
    raise UserError(
        f'{folder} is damaged ({problem}): remove that directory, and the '
        'images are decoded again'
    ) from error
  return Arrays(image, label, decoded.source)


def _sample_is_whole(image, chunk, sums):
  """Verifies checksums of a few chunks, including the first and the last."""
  some = np.linspace(0, len(sums) - 1, min(_CHECKED, len(sums))).astype(int)
  return all(
      zlib.crc32(image[i * chunk : (i + 1) * chunk]) == sums[i] for i in some
  )
