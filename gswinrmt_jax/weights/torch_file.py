"""Reads what `torch.save` wrote, without PyTorch and without running anything.

A pickle is a program. Here it may build containers, numbers, strings and
tensors, the few names of `_Unpickler._names`; any other name ends the reading.
"""

from collections.abc import Callable
import dataclasses
import io
import math
import pathlib
import pickle
from typing import Any, ClassVar
import zipfile

import ml_dtypes
import numpy as np

from gswinrmt_jax.errors import UserError

_DTYPES = {
    'DoubleStorage': np.float64,
    'FloatStorage': np.float32,
    'HalfStorage': np.float16,
    'BFloat16Storage': ml_dtypes.bfloat16,
    'LongStorage': np.int64,
    'IntStorage': np.int32,
    'ShortStorage': np.int16,
    'CharStorage': np.int8,
    'ByteStorage': np.uint8,
    'BoolStorage': np.bool_,
}
_MAX_AXES = 32
_MAX_EXTENT = 2**40  # far beyond any file, and products stay small numbers
# Bytes of the pickle: some 200 for a tensor; what it builds may be 60 as many.
_MAX_PROGRAM = 2**24
_MAX_KEY = 2**31


class _RefusedError(Exception):
  """What the file asks for is not on the list, or does not fit together."""


@dataclasses.dataclass(frozen=True)
class _StorageType:
  """What the name of a storage class stands for."""

  dtype: Any


@dataclasses.dataclass(frozen=True)
class _Storage:
  """The numbers of one member; nothing that the file builds is one."""

  data: np.ndarray


class _Dict(dict):
  """Takes no arguments: a copy of a copy of a copy would fill the memory."""

  def __new__(cls):
    return super().__new__(cls)

  def __init__(self):
    super().__init__()


def read(path: pathlib.Path) -> Any:
  """Returns the object in a file of `torch.save`, tensors as numpy arrays.

  Args:
    path: A file written by PyTorch 1.6 or later.

  Returns:
    Nested dicts, lists and scalars. Attributes of objects are left out: an
    `argparse.Namespace` or the like is an empty dict. numpy's numbers are None.

  Raises:
    UserError: If it is no such file, is damaged, or names anything but
      containers and tensors; nothing of it is executed.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      return _load(_Members(archive, path.stat().st_size))
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except zipfile.BadZipFile as error:
    raise UserError(
        f'{path} is no PyTorch checkpoint, or a cut one ({error}); files from '
        'before PyTorch 1.6 have to be loaded and saved again with a newer one'
    ) from error
  except _RefusedError as error:
    raise UserError(f'{path} is refused: {error}') from error
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error}') from error
  except Exception as error:  # Whatever damaged bytes lead to.
    # Some quote what they could not read, however much of it there is.
    said = ' '.join(f'{type(error).__name__}: {error}'[:160].split())
    raise UserError(f'{path} is damaged: {said}') from error


def _load(members):
  programs = [name for name in members.names if name.endswith('/data.pkl')]
  if len(programs) != 1:
    raise _RefusedError(
        f'it has {len(programs)} data.pkl instead of one, so torch.save did '
        'not write it'
    )
  root = programs[0].removesuffix('data.pkl')
  if f'{root}byteorder' in members.names:
    order = members.read(f'{root}byteorder').strip()
    if order != b'little':
      raise _RefusedError(f'its byte order is {order[:20]!a}')
  program = members.read(programs[0])
  if len(program) > _MAX_PROGRAM:
    raise _RefusedError(
        f'its data.pkl has {len(program):,} bytes, far more than tensors need'
    )
  return _Unpickler(
      io.BytesIO(program), lambda key: members.read(f'{root}data/{key}')
  ).load()


class _Members:
  """The members of the file, which together are no larger than it is."""

  def __init__(self, archive: zipfile.ZipFile, size: int):
    self.names = set(archive.namelist())
    self._archive = archive
    self._left = size

  def read(self, name: str) -> bytes:
    """Returns a member; torch.save stores them as they are."""
    if name not in self.names:
      raise _RefusedError(f'its part {name!a} is missing')
    member = self._archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
      raise _RefusedError(f'its part {name!a} is compressed')
    # A crafted file has members that lie over one another.
    self._left -= member.file_size
    if self._left < 0:
      raise _RefusedError('its parts are larger than the file')
    return self._archive.read(member)


# The unpickler written in Python: that in C makes room for whatever memo index
# a crafted file names, up to all memory.
class _Unpickler(pickle._Unpickler):
  """Knows containers and tensors, and sets no attributes."""

  dispatch: ClassVar = dict(pickle._Unpickler.dispatch)
  # The first takes whatever memory the file asks for, the others hash what may
  # take for ever, as numbers of any size do; torch.save writes none of them.
  for _code in (
      pickle.BYTEARRAY8,
      pickle.PUT,
      pickle.EMPTY_SET,
      pickle.ADDITEMS,
      pickle.FROZENSET,
  ):
    del dispatch[_code[0]]

  def __init__(self, file: io.BytesIO, entry: Callable[[str], bytes]):
    super().__init__(file)
    self._entry = entry
    self._storages = {}
    self._names = {
        'collections.OrderedDict': _Dict,
        'torch.Size': _size,
        'torch._utils._rebuild_tensor_v2': _rebuild_tensor,
        'torch._utils._rebuild_parameter': _rebuild_parameter,
        # Settings and figures that training scripts save along: left out.
        'argparse.Namespace': _Dict,
        'yacs.config.CfgNode': _Dict,
        'numpy.dtype': _left_out,
        'numpy.core.multiarray.scalar': _left_out,
        'numpy._core.multiarray.scalar': _left_out,
        '_codecs.encode': _left_out,
        **{
            f'torch.{name}': _StorageType(dtype)
            for name, dtype in _DTYPES.items()
        },
    }

  def find_class(self, module: str, name: str) -> Any:
    """Returns what a name stands for, if it is on the list."""
    full = f'{module}.{name}'
    if full not in self._names:
      raise _RefusedError(
          f'it names {full[:80]!a}, which is no tensor and no container'
      )
    return self._names[full]

  def persistent_load(self, pid: Any) -> _Storage:
    """Returns a storage: `('storage', type, key, location, elements)`."""
    kind, storage_type, key, _, count = pid
    if (
        kind != 'storage'
        or not isinstance(storage_type, _StorageType)
        or not isinstance(key, str)
    ):
      raise _RefusedError('it refers to something outside of the file')
    if key not in self._storages:
      data = np.frombuffer(self._entry(key), storage_type.dtype)
      if len(data) != count:
        raise _RefusedError(
            f'its part {key!a} has {len(data)} numbers, not as many as it says'
        )
      self._storages[key] = _Storage(data)
    return self._storages[key]

  def _drop_state(self):
    self.stack.pop()

  def _set_items(self):
    self._set(self.pop_mark())

  def _set_item(self):
    value, key = self.stack.pop(), self.stack.pop()
    self._set([key, value])

  def _set(self, items):
    if not isinstance(self.stack[-1], dict):
      raise _RefusedError('it puts items into what is no dict')
    for key, value in zip(items[::2], items[1::2], strict=True):
      # To hash tuples of tuples of tuples would take for ever.
      if not isinstance(key, str) and not (
          isinstance(key, int) and abs(key) < _MAX_KEY
      ):
        raise _RefusedError('a key is neither text nor a small number')
      self.stack[-1][key] = value

  dispatch[pickle.BUILD[0]] = _drop_state
  dispatch[pickle.SETITEM[0]] = _set_item
  dispatch[pickle.SETITEMS[0]] = _set_items


def _size(extents):
  """Returns extents or strides, checked: whole, few and not too large."""
  if (
      not isinstance(extents, tuple)
      or len(extents) > _MAX_AXES
      or not all(type(n) is int and 0 <= n <= _MAX_EXTENT for n in extents)
  ):
    raise _RefusedError('a tensor has an impossible size, stride or offset')
  return extents


def _rebuild_tensor(storage, offset, size, stride, *_):
  """Returns a view of the storage, which lies inside of it."""
  if not isinstance(storage, _Storage):
    raise _RefusedError('a tensor has no storage')
  _size((offset,)), _size(size), _size(stride)
  if len(size) != len(stride):
    raise _RefusedError(f'a tensor has size {size} and stride {stride}')
  data = storage.data
  count = math.prod(size)
  last = offset + sum(
      (n - 1) * step for n, step in zip(size, stride, strict=True)
  )
  if count > len(data) or (count and last >= len(data)):
    raise _RefusedError(f'a tensor of size {size} is larger than its storage')
  return np.lib.stride_tricks.as_strided(
      data[offset:],
      size,
      [step * data.itemsize for step in stride],
      writeable=False,
  )


def _rebuild_parameter(data, *_):
  return data


def _left_out(*_):
  return None
