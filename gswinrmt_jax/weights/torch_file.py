"""Reads and writes files of `torch.save` without PyTorch.

The file is an uncompressed zip archive of `data.pkl`, a pickle that rebuilds
the tensors, and `data/N`, the elements of storage N. A pickle is a program.
Here it is run by a small interpreter, which knows only the opcodes that build
containers, numbers, strings and tensors, and only the names in `_STAND_INS`.
"""

from collections.abc import Callable, Mapping
import math
import pathlib
import pickle
import pickletools
from typing import Any, NamedTuple
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
_STORAGES = {np.dtype(t).name: name for name, t in _DTYPES.items()}


def read(path: pathlib.Path) -> Any:
  """Returns the object in a file of `torch.save`, with tensors as NumPy arrays.

  Args:
    path: A file written by PyTorch 1.6 or later.

  Returns:
    Nested dicts, lists and scalars. Attributes of objects are dropped: an
    `argparse.Namespace`, for example, becomes an empty dict. NumPy scalars
    become None.

  Raises:
    UserError: If the file has another format, is damaged, or names anything but
      containers and tensors.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      return _load(archive)
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except zipfile.BadZipFile as error:
    raise UserError(
        f'{path} is not a PyTorch checkpoint, or it is truncated ({error}); '
        'files from before PyTorch 1.6 must be saved again with a newer version'
    ) from error
  except _RefusedError as error:
    raise UserError(f'{path} is refused: {error}') from error
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error
  except Exception as error:  # Damaged bytes may raise anything.
    # Some messages quote unreadable data of any length.
    said = ' '.join(f'{type(error).__name__}: {error}'[:160].split())
    raise UserError(f'{path} is damaged: {said}') from error


def write(path: pathlib.Path, tree: Mapping[str, Any]) -> None:
  """Writes nested dicts of arrays, integers, text and lists, atomically."""
  arrays = []
  program = b'\x80\x02' + _pickled(tree, arrays) + b'.'  # protocol 2
  with (
      files.replaced(path) as part,
      zipfile.ZipFile(part, 'w', zipfile.ZIP_STORED) as archive,
  ):
    archive.writestr('archive/data.pkl', program)
    archive.writestr('archive/byteorder', 'little')
    for key, array in enumerate(arrays):
      little = np.ascontiguousarray(array, array.dtype.newbyteorder('<'))
      archive.writestr(f'archive/data/{key}', little.tobytes())
    archive.writestr('archive/version', '3\n')


class _RefusedError(Exception):
  """The file uses something that is not allowed, or is inconsistent."""


class _Storage(NamedTuple):
  """The elements of one member; a pickle cannot build one by itself."""

  data: np.ndarray


def _load(archive: zipfile.ZipFile) -> Any:
  """Returns the object in an archive."""
  names = set(archive.namelist())
  programs = [name for name in names if name.endswith('/data.pkl')]
  if len(programs) != 1:
    raise _RefusedError(
        f'it has {len(programs)} data.pkl instead of one, so torch.save did '
        'not write it'
    )
  root = programs[0].removesuffix('data.pkl')
  storages = {}

  def member(name):
    """Returns a member; torch.save stores them uncompressed."""
    name = root + name
    if name not in names:
      raise _RefusedError(f'its part {name[-80:]!a} is missing')
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
      raise _RefusedError(f'its part {name[-80:]!a} is compressed')
    return archive.read(info)

  def storage(pid):
    """Returns the storage of `('storage', type, key, location, elements)`."""
    kind, dtype, key, _, count = pid
    if kind != 'storage':
      raise _RefusedError('it refers to something outside of the file')
    if key not in storages:
      data = np.frombuffer(member(f'data/{key}'), dtype)
      if len(data) != count:
        raise _RefusedError(
            f'its part {key[-80:]!a} has {len(data)} numbers, not as many as '
            'it says'
        )
      storages[key] = _Storage(data)
    return storages[key]

  if f'{root}byteorder' in names:
    order = member('byteorder').strip()
    if order != b'little':
      raise _RefusedError(f'its byte order is {order[:20]!a}')
  return _run(member('data.pkl'), storage)


def _run(program: bytes, storage: Callable[[Any], _Storage]) -> Any:
  """Returns what a pickle builds; `storage` resolves persistent ids."""
  stack, marks, memo = [], [], {}

  def pop_from(start):
    items = stack[start:]
    del stack[start:]
    return items

  for opcode, argument, _ in pickletools.genops(program):
    match opcode.name:
      case 'PROTO' | 'FRAME' | 'STOP':
        pass
      case name if name in _NEW:
        stack.append(_NEW[name]())
      case name if name in _LITERALS:
        stack.append(argument)
      case 'MARK':
        marks.append(len(stack))
      case 'TUPLE':
        stack.append(tuple(pop_from(marks.pop())))
      case 'TUPLE1' | 'TUPLE2' | 'TUPLE3':
        stack.append(tuple(pop_from(-int(opcode.name[-1]))))
      case 'APPEND' | 'APPENDS':
        items = pop_from(-1 if opcode.name == 'APPEND' else marks.pop())
        stack[-1].extend(items)
      case 'SETITEM' | 'SETITEMS':
        items = pop_from(-2 if opcode.name == 'SETITEM' else marks.pop())
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
      case 'BINPUT' | 'LONG_BINPUT':
        memo[argument] = stack[-1]
      case 'MEMOIZE':
        memo[len(memo)] = stack[-1]
      case 'BINGET' | 'LONG_BINGET':
        stack.append(memo[argument])
      case 'GLOBAL':
        stack.append(_stand_in(*argument.split(' ')))
      case 'STACK_GLOBAL':
        stack.append(_stand_in(*pop_from(-2)))
      case 'REDUCE' | 'NEWOBJ':
        function, arguments = pop_from(-2)
        stack.append(function(*arguments))
      case 'BINPERSID':
        stack.append(storage(stack.pop()))
      case 'BUILD':
        stack.pop()  # Attributes are dropped.
      case other:
        raise _RefusedError(f'its pickle has an opcode {other}')
  return stack.pop()


def _stand_in(module, name):
  full = f'{module}.{name}'
  if full not in _STAND_INS:
    raise _RefusedError(
        f'it names {full[:80]!a}, which is neither a tensor nor a container'
    )
  return _STAND_INS[full]


def _size(extents):
  """Returns extents or strides after checking their values."""
  if not all(type(n) is int and n >= 0 for n in extents):
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


def _dropped(*_):
  return None


def _empty():  # No argument: copies of copies of dicts could fill the memory.
  return {}


_NEW = {
    'EMPTY_DICT': dict,
    'EMPTY_LIST': list,
    'EMPTY_TUPLE': tuple,
    'NONE': lambda: None,
    'NEWTRUE': lambda: True,
    'NEWFALSE': lambda: False,
}
_LITERALS = {
    *('BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT'),
    *('BINUNICODE', 'SHORT_BINUNICODE', 'BINBYTES', 'SHORT_BINBYTES'),
}
_STAND_INS = {
    'collections.OrderedDict': _empty,
    'torch.Size': _size,
    'torch._utils._rebuild_tensor_v2': _rebuild_tensor,
    'torch._utils._rebuild_parameter': lambda data, *_: data,
    # Training scripts also save settings and metrics, which are dropped.
    'argparse.Namespace': _empty,
    'yacs.config.CfgNode': _empty,
    'numpy.dtype': _dropped,
    'numpy.core.multiarray.scalar': _dropped,
    'numpy._core.multiarray.scalar': _dropped,
    '_codecs.encode': _dropped,
    **{f'torch.{name}': np.dtype(dtype) for name, dtype in _DTYPES.items()},
}


def _pickled(value, arrays):
  """Returns the opcodes of an entry of the tree; collects the arrays.

  An array is `_rebuild_tensor_v2(storage, 0, shape, stride, False, {})`.
  """
  if isinstance(value, Mapping):
    items = [
        _literal(name) + _pickled(entry, arrays) + b's'
        for name, entry in value.items()
    ]
    return b''.join([b'}', *items])
  if isinstance(value, (str, int, list)):
    return _literal(value)
  key, shape = str(len(arrays)), value.shape
  arrays.append(value)
  stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
  # Opcodes: c name, ( mark, t tuple, Q storage, ) empty tuple, R call.
  return b''.join(
      [
          b'ctorch._utils\n_rebuild_tensor_v2\n((',
          _literal('storage'),
          f'ctorch\n{_STORAGES[value.dtype.name]}\n'.encode(),
          *map(_literal, (key, 'cpu', value.size)),
          b'tQ',
          *map(_literal, (0, shape, stride, False)),
          b'ccollections\nOrderedDict\n)RtR',
      ]
  )


def _literal(value):
  """Returns the opcodes of text, a number, or a tuple or list of them."""
  return pickle.dumps(value, protocol=2)[2:-1]  # without PROTO and STOP
