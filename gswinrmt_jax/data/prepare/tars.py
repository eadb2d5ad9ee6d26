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

  Those of a tar inside it are named ARCHIVE/INNER/MEMBER. Only headers are
  read: a picture is known by the place of its bytes in the outer tar. `archive`
  is relative to `root`; `ignored` counts what is passed over, by suffix.

  Raises:
    UserError: If it is no uncompressed tar, is damaged, or has a member that
      is sparse or whose name is not UTF-8.
  """

  def read(file, name, start):
    for tar, member in _members(file, root / name):
      path = f'{name}/{member.name.removeprefix("./")}'
      place = start + member.offset_data
      suffix = class_folders.suffix_of(path)
      if os.path.basename(path).startswith('.'):
        ignored['hidden'] += 1
      elif suffix == '.tar':
        yield from read(tar.extractfile(member), path, place)
      elif suffix in class_folders.SUFFIXES:
        yield Picture(path, 0, archive, place, member.size)
      else:
        ignored[suffix] += 1

  with (root / archive).open('rb') as file:
    yield from read(file, archive, 0)


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
