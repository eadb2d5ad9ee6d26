"""Reads and writes files of `torch.save`, without PyTorch.

The file is a zip of stored members: `data.pkl`, a pickle that rebuilds the
tensors, and `data/N`, the numbers of storage N. A pickle is a program. Here it
may build containers, numbers, strings and tensors, by the few names that
`_Unpickler` knows; any other name ends the reading, and nothing is executed.
"""

from collections.abc import Callable, Mapping
import dataclasses
import io
import math
import pathlib
import pickle
from typing import Any, ClassVar
import zipfile

import ml_dtypes
import numpy as np

from gswinrmt_jax import files
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
_STORAGES = {'float32': 'FloatStorage', 'int64': 'LongStorage'}
_ROOT = 'archive'
_MAX_AXES = 32
_MAX_EXTENT = 2**40  # far beyond any file, and products stay small numbers
# Bytes of the pickle, about 200 a tensor; objects take up to 60 times as much.
_MAX_PROGRAM = 2**24
_MAX_KEY = 2**31


def read(path: pathlib.Path) -> Any:
  """Returns the object in a file of `torch.save`, tensors as NumPy arrays.

  Args:
    path: A file written by PyTorch 1.6 or later.

  Returns:
    Nested dicts, lists and scalars. Attributes of objects are dropped: an
    `argparse.Namespace` or the like is an empty dict. NumPy scalars are None.

  Raises:
    UserError: If the file is something else, is damaged, or names anything but
      containers and tensors.
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
  except Exception as error:  # Damaged bytes may raise anything.
    # Some messages quote what they could not read, whatever its length.
    said = ' '.join(f'{type(error).__name__}: {error}'[:160].split())
    raise UserError(f'{path} is damaged: {said}') from error


def write(
    path: pathlib.Path, tree: Mapping[str, Mapping[str, np.ndarray]]
) -> None:
  """Writes dicts of arrays, whole or not at all; `torch.load` reads them.

  Args:
    path: The file.
    tree: State dicts by their entry; arrays are float32 or int64.
  """
  arrays = [array for entry in tree.values() for array in entry.values()]
  with (
      files.replaced(path) as part,
      zipfile.ZipFile(part, 'w', zipfile.ZIP_STORED) as archive,
  ):
    archive.writestr(f'{_ROOT}/data.pkl', _program(tree))
    archive.writestr(f'{_ROOT}/byteorder', 'little')
    for key, array in enumerate(arrays):
      little = np.ascontiguousarray(array, array.dtype.newbyteorder('<'))
      archive.writestr(f'{_ROOT}/data/{key}', little.tobytes())
    archive.writestr(f'{_ROOT}/version', '3\n')


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


class _RefusedError(Exception):
  """The file names something that is not on the list, or is inconsistent."""


@dataclasses.dataclass(frozen=True)
class _Storage:
  """The numbers of one member; a pickle cannot build one by itself."""

  data: np.ndarray


class _Dict(dict):
  """Takes no arguments: repeated copies of copies would fill the memory."""

  def __new__(cls):
    return super().__new__(cls)

  def __init__(self):
    super().__init__()


class _Members:
  """The members of the file, together no larger than the file."""

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


# The unpickler written in Python: the one in C allocates memory for any memo
# index that a crafted file names.
class _Unpickler(pickle._Unpickler):
  """Knows containers and tensors, and sets no attributes."""

  dispatch: ClassVar = dict(pickle._Unpickler.dispatch)
  # The first allocates as much memory as the file asks for. The others hash
  # objects, which may take for ever. torch.save writes none of them.
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
        # Settings and figures that training scripts save as well: dropped.
        'argparse.Namespace': _Dict,
        'yacs.config.CfgNode': _Dict,
        'numpy.dtype': _dropped,
        'numpy.core.multiarray.scalar': _dropped,
        'numpy._core.multiarray.scalar': _dropped,
        '_codecs.encode': _dropped,
        **{f'torch.{name}': np.dtype(dtype) for name, dtype in _DTYPES.items()},
    }

  def find_class(self, module: str, name: str) -> Any:
    """Returns the stand-in of a name, if the name is on the list."""
    full = f'{module}.{name}'
    if full not in self._names:
      raise _RefusedError(
          f'it names {full[:80]!a}, which is no tensor and no container'
      )
    return self._names[full]

  def persistent_load(self, pid: Any) -> _Storage:
    """Returns a storage: `('storage', type, key, location, elements)`."""
    kind, dtype, key, _, count = pid
    if (
        kind != 'storage'
        or not isinstance(dtype, np.dtype)
        or not isinstance(key, str)
    ):
      raise _RefusedError('it refers to something outside the file')
    if key not in self._storages:
      data = np.frombuffer(self._entry(key), dtype)
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
      # Hashing tuples of tuples of tuples would take for ever.
      if not isinstance(key, str) and not (
          isinstance(key, int) and abs(key) < _MAX_KEY
      ):
        raise _RefusedError('a key is neither text nor a small number')
      self.stack[-1][key] = value

  dispatch[pickle.BUILD[0]] = _drop_state
  dispatch[pickle.SETITEM[0]] = _set_item
  dispatch[pickle.SETITEMS[0]] = _set_items


def _size(extents):
  """Returns extents or strides if they are integers, few and not too large."""
  if (
      not isinstance(extents, tuple)
      or len(extents) > _MAX_AXES
      or not all(type(n) is int and 0 <= n <= _MAX_EXTENT for n in extents)
  ):
    raise _RefusedError('a tensor has an impossible size, stride or offset')
  return extents


def _rebuild_tensor(storage, offset, size, stride, *_):
  """Returns a view that lies inside its storage."""
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


def _dropped(*_):
  return None


def _program(tree):
  """Returns the pickle: the tree, with each array a call that rebuilds it."""
  code = [pickle.PROTO, b'\x02', pickle.EMPTY_DICT]
  count = 0
  for entry, arrays in tree.items():
    code += [_literal(entry), pickle.EMPTY_DICT]
    for name, array in arrays.items():
      code += [_literal(name), *_tensor(array, str(count)), pickle.SETITEM]
      count += 1
    code.append(pickle.SETITEM)
  return b''.join([*code, pickle.STOP])


def _tensor(array, key):
  """`_rebuild_tensor_v2(storage, 0, shape, stride, False, OrderedDict())`."""
  stride = tuple(
      math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)
  )
  return [
      _global('torch._utils', '_rebuild_tensor_v2'),
      pickle.MARK,
      pickle.MARK,
      _literal('storage'),
      _global('torch', _STORAGES[array.dtype.name]),
      *map(_literal, (key, 'cpu', array.size)),
      pickle.TUPLE,
      pickle.BINPERSID,
      *map(_literal, (0, array.shape, stride, False)),
      _global('collections', 'OrderedDict'),
      pickle.EMPTY_TUPLE,
      pickle.REDUCE,
      pickle.TUPLE,
      pickle.REDUCE,
  ]


def _literal(value):
  """Returns the opcodes of a string, a number or a tuple of numbers."""
  return pickle.dumps(value, protocol=2)[2:-1]  # without PROTO and STOP


def _global(module, name):
  return pickle.GLOBAL + f'{module}\n{name}\n'.encode()
