"""Finds the pictures inside uncompressed tars, without unpacking them."""

from collections import Counter
from collections.abc import Iterator
import os
import pathlib
import tarfile

from gswinrmt_jax.data import image_folders
from gswinrmt_jax.data.collection import Picture
from gswinrmt_jax.errors import UserError


def pictures(
    root: pathlib.Path, archive: str, ignored: Counter
) -> Iterator[Picture]:
  """Yields the pictures of a tar, each named ARCHIVE/MEMBER, labels 0.

  Args:
    root: What the names are relative to.
    archive: The tar, relative to `root`.
    ignored: Counts what is passed over, by suffix.

  Raises:
    UserError: If it is no tar, a compressed or a truncated one, or has a name
      that is not UTF-8.
  """
  with _opened(root / archive) as tar:
    yield from _pictures(tar, archive, archive, 0, ignored)


def pictures_of_tars(
    root: pathlib.Path, archive: str, ignored: Counter
) -> Iterator[tuple[str, list[Picture]]]:
  """Yields the pictures of a tar of tars, by the inner tars' names.

  Each is named ARCHIVE/INNER/MEMBER. Only headers are read: a picture is known
  by the place of its bytes in the outer tar.

  Raises:
    UserError: If one of them is no tar, a compressed or a truncated one, or has
      a name that is not UTF-8.
  """
  with _opened(root / archive) as outer:
    for member in _members(outer, root / archive):
      if not member.name.endswith('.tar'):
        ignored[_suffix(member)] += 1
        continue
      name = f'{archive}/{_plain(member.name)}'
      with _opened(root / name, outer.extractfile(member)) as tar:
        yield pathlib.PurePosixPath(member.name).stem, list(
            _pictures(tar, name, archive, member.offset_data, ignored)
        )


def _pictures(tar, name, archive, start, ignored):
  for member in _members(tar, name):
    base = os.path.basename(member.name)
    if base.startswith('.'):
      ignored['hidden'] += 1
    elif _suffix(member) not in image_folders.SUFFIXES:
      ignored[_suffix(member)] += 1
    else:
      path = f'{name}/{_plain(member.name)}'
      yield Picture(path, 0, archive, start + member.offset_data, member.size)


def _opened(path, file=None):
  try:
    return tarfile.open(path if file is None else None, 'r:', file)
  except tarfile.TarError as error:
    raise UserError(
        f'{path} is no uncompressed tar, or a damaged one ({error})'
    ) from error


def _members(tar, path):
  """Yields the regular files of a tar."""
  try:
    for member in tar:
      if member.isfile():
        _check_name(member.name, path)
        yield member
    # Iteration ends at a damaged header as it does at the end, which is zeros.
    tar.fileobj.seek(tar.offset)
    whole = tar.fileobj.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    reason = 'it does not end as a tar does'
  except tarfile.TarError as error:
    whole, reason = False, error
  if not whole:
    raise UserError(f'{path} is truncated or damaged ({reason})')


def _check_name(name, path):
  try:
    name.encode()
  except UnicodeEncodeError:  # tarfile escapes bytes that are no text.
    raise UserError(
        f'{path} has a name that is not UTF-8, {name!r}: rename it'
    ) from None


def _plain(name):
  return name.removeprefix('./')


def _suffix(member):
  return os.path.splitext(member.name)[1].lower() or 'without suffix'
