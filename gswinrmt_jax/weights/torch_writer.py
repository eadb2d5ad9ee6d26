"""Writes arrays as `torch.save` does, without PyTorch.

The file is a zip of stored members: `data.pkl`, a pickle of protocol 2 that
rebuilds the tensors, and `data/N`, the numbers of tensor N.
"""

from collections.abc import Mapping
import pathlib
import pickle
import zipfile

import numpy as np

from gswinrmt_jax import files

_STORAGES = {'float32': 'FloatStorage', 'int64': 'LongStorage'}
_ROOT = 'archive'


def write(
    path: pathlib.Path, tree: Mapping[str, Mapping[str, np.ndarray]]
) -> None:
  """Writes dicts of arrays, whole or not at all; `torch.load` reads them.

  Args:
    path: The file.
    tree: State dicts by their entry; float32 and int64.
  """
  arrays = [array for entry in tree.values() for array in entry.values()]
  with (
      files.replacing(path) as part,
      zipfile.ZipFile(part, 'w', zipfile.ZIP_STORED) as archive,
  ):
    archive.writestr(f'{_ROOT}/data.pkl', _program(tree))
    archive.writestr(f'{_ROOT}/byteorder', 'little')
    for key, array in enumerate(arrays):
      little = np.ascontiguousarray(array, array.dtype.newbyteorder('<'))
      archive.writestr(f'{_ROOT}/data/{key}', little.tobytes())
    archive.writestr(f'{_ROOT}/version', '3\n')


def _program(tree):
  """Returns the pickle: the tree, with each array a call that rebuilds it."""
  code = [pickle.PROTO, b'\x02']
  count = 0
  code.append(pickle.EMPTY_DICT)
  for entry, arrays in tree.items():
    code += [*_literal(entry), pickle.EMPTY_DICT]
    for name, array in arrays.items():
      code += [*_literal(name), *_tensor(array, str(count)), pickle.SETITEM]
      count += 1
    code.append(pickle.SETITEM)
  return b''.join([*code, pickle.STOP])


def _tensor(array, key):
  """`_rebuild_tensor_v2(storage, 0, shape, stride, False, OrderedDict())`."""
  storage = _STORAGES[array.dtype.name]
  strides = tuple(
      int(np.prod(array.shape[axis + 1 :], dtype=np.int64))
      for axis in range(array.ndim)
  )
  return [
      _global('torch._utils', '_rebuild_tensor_v2'),
      pickle.MARK,
      pickle.MARK,
      *_literal('storage'),
      _global('torch', storage),
      *_literal(key),
      *_literal('cpu'),
      *_literal(array.size),
      pickle.TUPLE,
      pickle.BINPERSID,
      *_literal(0),
      *_literal(array.shape),
      *_literal(strides),
      pickle.NEWFALSE,
      _global('collections', 'OrderedDict'),
      pickle.EMPTY_TUPLE,
      pickle.REDUCE,
      pickle.TUPLE,
      pickle.REDUCE,
  ]


def _literal(value):
  """Returns the opcodes of a number, a string or a tuple of numbers."""
  if isinstance(value, tuple):
    inner = [code for number in value for code in _literal(number)]
    return [pickle.MARK, *inner, pickle.TUPLE]
  if isinstance(value, str):
    data = value.encode()
    return [pickle.BINUNICODE, len(data).to_bytes(4, 'little'), data]
  data = value.to_bytes(8, 'little', signed=True)
  return [pickle.LONG1, b'\x08', data]


def _global(module, name):
  return pickle.GLOBAL + f'{module}\n{name}\n'.encode()
