"""Cache of decoded images on disk, for data sets too large for memory.

    FOLDER/SPLIT_HEIGHTxWIDTH_cropCROP_HASH/
      image.npy    uint8 [n h w 3], memory-mapped
      crc32.npy    uint32 [n], of each image
      label.npy    int32 [n]
      cache.json   checksums of the last two

FOLDER is `decoded` in the data set's directory or, if that is not writable or
holds the images of a user, below ~/.cache. The hash covers everything that the
images depend on; for class folders, names, sizes and times of the files.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import shutil
import tempfile
import zlib

import numpy as np
import PIL

from gswinrmt_jax import files
from gswinrmt_jax.data import records
from gswinrmt_jax.data.records import Arrays, Images
from gswinrmt_jax.errors import UserError

_VERSION = 4  # of the decoding and the files; part of the hash
_INSTEAD = 'or set config.data.storage to memory or decode'


def load(images: Images) -> Arrays:
  """Returns the records from their cache; writes the cache if it is missing.

  If several processes need a missing cache, one writes it and the others wait.

  Raises:
    UserError: If a record cannot be decoded, the disk is full, or a cache has
      changed since it was written.
  """
  name = _name(images)
  places, usable = images.source.cache_folders(), []
  for place in places:
    try:
      if (place / name).exists():
        return _open(place / name, images)
      usable.append(place)
    except PermissionError:
      pass  # Another user has written it for nobody else.
  place = _first_writable(usable or places)
  with files.locked(place / '.lock', wait=True) as held:
    if held:
      files.remove_leftovers(place)
    if not (place / name).exists():
      _write(place / name, images)
  return _open(place / name, images)


def _name(images):
  """Returns the name of the cache: a readable part and a hash."""
  height, width, _ = images.image_shape
  depends_on = (
      _VERSION,
      PIL.__version__,  # Its decoders and resampling kernels may change.
      images.source.fingerprint(),
      images.size and (height, width),  # None: nothing is resized.
      images.eval_crop,
  )
  digest = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:16]
  split = ''.join(c if c.isalnum() else '-' for c in images.source.split)
  return f'{split}_{height}x{width}_crop{images.eval_crop:.4g}_{digest}'


def _first_writable(places):
  for place in places:
    with contextlib.suppress(OSError):
      place.mkdir(parents=True, exist_ok=True)
      with tempfile.TemporaryFile(dir=place):
        return place
  raise UserError(
      f'decoded images cannot be written to {" or ".join(map(str, places))}: '
      f'set XDG_CACHE_HOME, {_INSTEAD}'
  )


def _write(folder, images):
  shape = (len(images), *images.image_shape)
  size = int(np.prod(shape))
  if size > shutil.disk_usage(folder.parent).free:
    raise UserError(
        f'no room in {folder.parent} for {size / 1e9:.1f} GB of decoded '
        f'images: set XDG_CACHE_HOME, {_INSTEAD}'
    )
  print(
      f'Decoding {shape[0]:,} images of {images.source.split!r} once, to '
      f'{folder} ({size / 1e9:.1f} GB).',
      flush=True,
  )
  try:
    with files.replaced(folder) as part:
      part.mkdir()
      _write_arrays(part, shape, images)
  except OSError as error:
    if not folder.exists():  # Else a process on another machine was faster.
      raise UserError(
          f'cannot write decoded images to {folder.parent}: {error.strerror}; '
          f'make room, {_INSTEAD}'
      ) from error


def _write_arrays(folder, shape, images):
  labels, sums = [], []
  with (folder / 'image.npy').open('wb') as file:
    np.lib.format.write_array_header_1_0(
        file, {'descr': '|u1', 'fortran_order': False, 'shape': shape}
    )
    for chunk in records.decode_all(images):
      file.write(chunk['image'].data)
      sums += map(zlib.crc32, chunk['image'])
      labels.append(chunk['label'])
  small = {'label': np.concatenate(labels), 'crc32': np.array(sums, np.uint32)}
  for name, array in small.items():
    np.save(folder / f'{name}.npy', array)
  written = {name: zlib.crc32(array) for name, array in small.items()}
  (folder / 'cache.json').write_text(json.dumps(written))


def _open(folder, images):
  """Memory-maps a cache; verifies everything but the images."""
  shape = (len(images), *images.image_shape)
  try:
    written = json.loads((folder / 'cache.json').read_text())
    image = np.load(folder / 'image.npy', mmap_mode='r')
    label, sums = (np.load(folder / f'{n}.npy') for n in ('label', 'crc32'))
    if not (
        (image.shape, image.dtype) == (shape, np.uint8)
        and (label.shape, label.dtype) == (shape[:1], np.int32)
        and (sums.shape, sums.dtype) == (shape[:1], np.uint32)
        and zlib.crc32(label) == written['label']
        and zlib.crc32(sums) == written['crc32']
    ):
      raise ValueError('it changed since it was written')
  except PermissionError:  # of a cache that another user has
    raise
  except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
    raise _damaged(folder, str(error).split('\n')[0]) from error
  return Cached(image, label, images.source, sums=sums, folder=folder)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Cached(Arrays):
  """Memory-mapped records; each image is verified when it is first read.

  Attributes:
    sums: CRC-32 of each image, uint32 `[n]`.
    folder: Folder of the cache.
  """

  sums: np.ndarray
  folder: pathlib.Path

  def __post_init__(self):
    object.__setattr__(self, '_verified', np.zeros(len(self), bool))

  def gather(self, rows: np.ndarray) -> records.Batch:
    """Returns a batch as `Arrays.gather` does.

    Raises:
      UserError: If an image changed since the cache was written.
    """
    batch = super().gather(rows)
    for index in np.flatnonzero(~self._verified[rows]):
      if zlib.crc32(batch['image'][index]) != self.sums[rows[index]]:
        raise _damaged(self.folder, f'image {rows[index]} changed')
    self._verified[rows] = True
    return batch


def _damaged(folder, problem):
  return UserError(
      f'{folder} cannot be read ({problem}): if it is damaged, remove that '
      'folder, and the images are decoded again'
  )
