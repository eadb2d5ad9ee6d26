"""Finds the pictures inside uncompressed tars, without unpacking them."""

from collections import Counter
from collections.abc import Iterator
import os
import pathlib
import tarfile
from typing import BinaryIO

from gswinrmt_jax.data.prepare import class_folders
from gswinrmt_jax.data.prepare.collection import Picture
from gswinrmt_jax.errors import UserError


def pictures(
    root: pathlib.Path, archive: str, ignored: Counter
) -> Iterator[Picture]:
  """Yields the pictures of a tar, each named ARCHIVE/MEMBER, labels 0.

  Args:
    root: Directory that the names are relative to.
    archive: The tar, relative to `root`.
    ignored: Counts what is passed over, by suffix.

  Raises:
    UserError: If it is no uncompressed tar, is damaged, or has a member that
      is sparse or whose name is not UTF-8.
  """
  with (root / archive).open('rb') as file:
    yield from _pictures(file, root / archive, archive, archive, 0, ignored)


def pictures_of_tars(
    root: pathlib.Path, archive: str, ignored: Counter
) -> Iterator[tuple[str, list[Picture]]]:
  """Yields the pictures of a tar of tars, by the inner tars' names.

  Each is named ARCHIVE/INNER/MEMBER. Only headers are read: a picture is known
  by the place of its bytes in the outer tar.

  Raises:
    UserError: As `pictures`, for any of the tars.
  """
  with (root / archive).open('rb') as file:
    for outer, member in _members(file, root / archive):
      if not member.name.endswith('.tar'):
        ignored[_suffix(member)] += 1
        continue
      name = f'{archive}/{_plain(member.name)}'
      inner = outer.extractfile(member)
      start = member.offset_data
      yield pathlib.PurePosixPath(member.name).stem, list(
          _pictures(inner, root / name, name, archive, start, ignored)
      )


def _pictures(file, path, name, archive, start, ignored):
  """Yields the pictures of a tar that starts at a place of `archive`."""
  for _, member in _members(file, path):
    base = os.path.basename(member.name)
    if base.startswith('.'):
      ignored['hidden'] += 1
    elif _suffix(member) not in class_folders.SUFFIXES:
      ignored[_suffix(member)] += 1
    else:
      file_name = f'{name}/{_plain(member.name)}'
      place = start + member.offset_data
      yield Picture(file_name, 0, archive, place, member.size)


def _members(
    file: BinaryIO, path: pathlib.Path
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
  """Yields a tar's regular files, whose headers may say anything."""
  try:
    tar = tarfile.open(fileobj=file, mode='r:')
  except Exception as error:  # tarfile fails on bad bytes in many ways.
    raise UserError(
        f'{path} is no uncompressed tar, or a damaged one ({error})'
    ) from error
  with tar:
    end = file.seek(0, os.SEEK_END)
    while member := _next(tar, path):
      _check(member, path, end)
      if member.isfile():
        yield tar, member
    # tarfile stops at a damaged header as it does at the end, which is zeros.
    file.seek(tar.offset)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
      raise _damaged(path, 'it does not end as a tar does')


def _next(tar, path):
  try:
    return tar.next()
  except Exception as error:  # as above
    raise _damaged(path, error) from error


def _check(member, path, end):
  name = member.name
  try:
    name.encode()
  except UnicodeEncodeError:  # tarfile escapes bytes that are no text.
    raise UserError(
        f'{path} has a name that is not UTF-8, {name!r}: rename it'
    ) from None
  if member.issparse():
    raise UserError(
        f'{path} has {name!r} as a sparse file: pack it without --sparse'
    )
  # A negative size would lead back to headers that were read before.
  if member.size < 0 or member.offset_data + member.size > end:
    raise _damaged(path, f'{name!r} has {member.size} bytes in it')


def _damaged(path, reason):
  return UserError(f'{path} is truncated or damaged ({reason})')


def _plain(name):
  return name.removeprefix('./')


def _suffix(member):
  return os.path.splitext(member.name)[1].lower() or 'without suffix'
