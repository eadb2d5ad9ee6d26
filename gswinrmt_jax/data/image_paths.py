"""Image files in folders, and in uncompressed tars, which are not unpacked."""

from collections import Counter
from collections.abc import Iterator
import hashlib
import os
import pathlib
import tarfile
from typing import NamedTuple
import unicodedata

import PIL.Image

from gswinrmt_jax.data import pictures
from gswinrmt_jax.errors import UserError

SUFFIXES = sorted(
    suffix
    for suffix, kind in PIL.Image.registered_extensions().items()
    if kind in pictures.FORMATS
)
_JUNK = ('__MACOSX',)  # folders that archives bring along


class ImageFile(NamedTuple):
  """An image file, or a member of an uncompressed tar.

  Attributes:
    file_name: Path relative to the collection's root, with slashes.
    label: Index of its class; 0 if every pixel has a label.
    archive: The tar that holds it, relative to the root; empty for a file.
    offset: Offset of its bytes in the tar.
    size: Number of its bytes in the tar.
    label_file: Its label image or file of objects, if any, relative to the
      folder of these.
  """

  file_name: str
  label: int
  archive: str = ''
  offset: int = 0
  size: int = 0
  label_file: str = ''


def read(root: pathlib.Path, image: ImageFile) -> bytes:
  """Returns an image's bytes.

  Raises:
    OSError: If they cannot be read.
  """
  path = os.path.join(root, image.archive or image.file_name)
  with open(path, 'rb') as file:
    if not image.archive:
      return file.read()
    file.seek(image.offset)
    return file.read(image.size)


def digest(content: bytes) -> int:
  """Returns a 64-bit hash; 10^6 files collide with probability below 10^-7."""
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def unchanged(root: pathlib.Path, image: ImageFile, known: int) -> bytes:
  """Returns an image's bytes.

  Raises:
    UserError: If they cannot be read, or have another digest than is known.
  """
  path = root / image.file_name
  try:
    content = read(root, image)
  except OSError as error:
    raise UserError(f'{path}: {error.strerror or error}') from error
  if digest(content) != known:
    raise UserError(f'{path} has changed since it was checked: start again')
  return content


def find(
    root: pathlib.Path, below: str, ignored: Counter
) -> Iterator[ImageFile]:
  """Yields the images in a folder at any depth, or in a tar, with label 0.

  Images in a folder are sorted by name, and links are followed. Images in a tar
  are named TAR/MEMBER, or TAR/INNER/MEMBER in a nested tar. Only the headers of
  a tar are read, to locate the bytes of its images.

  Args:
    root: Folder that names are relative to.
    below: The folder or tar, relative to `root`.
    ignored: Counts skipped files, by suffix.

  Raises:
    UserError: If a link leads to one of its parent folders, a name is not
      UTF-8, or a tar is compressed, damaged or has sparse files or hard links.
  """
  if (root / below).is_file():
    with (root / below).open('rb') as file:
      for name, offset, size in _in_tar(file, root, below, ignored):
        if _is_image(name, ignored):
          yield ImageFile(name, 0, below, offset, size)
  else:
    for name in _in_folder(root, below, ignored):
      if _is_image(name, ignored):
        yield ImageFile(name, 0)


def files(root: pathlib.Path, below: str, suffix: str) -> Iterator[str]:
  """Yields the files in a folder that have a suffix, as `find` does images.

  Args:
    root: Folder that names are relative to.
    below: The folder, relative to `root`.
    suffix: Such as '.xml'; in capitals, too. '' takes all files.

  Raises:
    UserError: As `find`.
  """
  for name in _in_folder(root, below, Counter()):
    if not suffix or suffix_of(name) == suffix:
      yield name


def visible(folder: pathlib.Path, ignored: Counter) -> list[str]:
  """Returns the sorted names in a folder, without hidden ones.

  Raises:
    UserError: If a name that is returned is not UTF-8.
  """
  names = sorted(os.listdir(folder))
  shown = [n for n in names if not n.startswith('.') and n not in _JUNK]
  for name in shown:
    if not is_utf8(name):
      raise UserError(
          f'{folder} has a name that is not UTF-8, {name!r}: rename it'
      )
  ignored['hidden'] += len(names) - len(shown)
  return shown


def is_utf8(name: str) -> bool:
  """Returns whether a name can be written; Python escapes other bytes."""
  return name.encode(errors='ignore').decode() == name


def composed(name: str) -> str:
  """Returns a name with accents in one character (NFC); a Mac's have two."""
  return unicodedata.normalize('NFC', name)


def suffix_of(file_name: str) -> str:
  """Returns '.jpg' of 'a/B.JPG', or 'without suffix'."""
  return os.path.splitext(file_name)[1].lower() or 'without suffix'


def _is_image(name, ignored):
  if suffix_of(name) in SUFFIXES:
    return True
  ignored[suffix_of(name)] += 1
  return False


def _in_folder(root, below, ignored, above=()):
  """Yields the files at any depth; `above` identifies the parent folders."""
  here = os.stat(root / below)
  here = here.st_dev, here.st_ino
  if here in above:
    raise UserError(f'{root / below} is a link to a folder that it is in')
  for entry in visible(root / below, ignored):
    name = f'{below}/{entry}'.lstrip('/')
    path = os.path.join(root, name)
    if os.path.isdir(path):
      yield from _in_folder(root, name, ignored, (*above, here))
    elif os.path.exists(path) and not os.path.isfile(path):
      ignored['not a regular file'] += 1  # Opening a pipe would wait forever.
    else:
      yield name


def _in_tar(file, root, below, ignored, start=0):
  """Yields name, offset and size of the files in a tar and in nested tars."""
  for tar, member in _members(file, root / below):
    name = f'{below}/{member.name.removeprefix("./")}'
    place = start + member.offset_data
    if os.path.basename(name).startswith('.'):
      ignored['hidden'] += 1
    elif suffix_of(name) == '.tar':
      inner = tar.extractfile(member)
      yield from _in_tar(inner, root, name, ignored, place)
    else:
      yield name, place, member.size


def _members(file, path):
  """Yields the open tar and each regular file in it."""
  try:
    with tarfile.open(fileobj=file, mode='r:') as tar:
      while member := tar.next():
        if member.issparse() or member.islnk():
          raise ValueError(f'{member.name!r} is sparse or a hard link')
        if member.isfile():
          yield tar, member
      # tarfile stops at a damaged header as at the end, a block of zeros.
      file.seek(tar.offset)
      if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise ValueError('it does not end as a tar does')
  except Exception as error:  # tarfile raises many types on bad bytes.
    raise UserError(
        f'{path} is damaged, or not an uncompressed tar ({error})'
    ) from error
