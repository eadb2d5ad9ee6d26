"""Writes files as `torch.save` does, without PyTorch."""

import io
import pickle
import sys
import types
import zipfile

import ml_dtypes
import numpy as np

_STORAGES = {
    np.dtype(np.float32): 'FloatStorage',
    np.dtype(np.float64): 'DoubleStorage',
    np.dtype(np.float16): 'HalfStorage',
    np.dtype(ml_dtypes.bfloat16): 'BFloat16Storage',
    np.dtype(np.int64): 'LongStorage',
}


class View:
  """A tensor that is part of a storage, given by a NumPy view."""

  def __init__(self, storage: np.ndarray, view: np.ndarray):
    assert storage.ndim == 1
    self.storage, self.view = storage, view


def save(path, value, **members):
  """Writes `value`; NumPy arrays in it become tensors.

  Args:
    path: The file.
    value: Nested dicts and lists.
    **members: Bytes that replace a member; 'data/0' is spelled `data_0`.
  """
  storages = []
  program = io.BytesIO()
  with _names() as names:
    _Pickler(program, storages, names).dump(value)
  contents = {'data.pkl': program.getvalue(), 'byteorder': b'little'}
  for key, storage in enumerate(storages):
    contents[f'data/{key}'] = storage.tobytes()
  contents |= {name.replace('_', '/'): data for name, data in members.items()}
  write_zip(path, contents)


def write_zip(path, contents, compression=zipfile.ZIP_STORED):
  with zipfile.ZipFile(path, 'w', compression) as archive:
    for name, data in contents.items():
      archive.writestr(f'archive/{name}', data)


class _Pickler(pickle._Pickler):
  """Pickles arrays as PyTorch pickles tensors, with protocol 2."""

  def __init__(self, file, storages, names):
    super().__init__(file, protocol=2)
    self._storages, self._types = storages, names

  def persistent_id(self, obj):
    if not isinstance(obj, _Storage):
      return None
    self._storages.append(obj.data)
    kind = self._types[_STORAGES[obj.data.dtype]]
    key = str(len(self._storages) - 1)
    return ('storage', kind, key, 'cpu', len(obj.data))

  def save(self, obj, save_persistent_id=True):
    if isinstance(obj, np.ndarray):
      obj = View(np.ascontiguousarray(obj).ravel(), np.ascontiguousarray(obj))
    if isinstance(obj, View):
      item = obj.view.itemsize
      start = obj.view.ctypes.data - obj.storage.ctypes.data
      offset = start // item if 0 <= start < obj.storage.nbytes else 0
      strides = tuple(step // item for step in obj.view.strides)
      function = self._types['_rebuild_tensor_v2']
      arguments = (
          _Storage(obj.storage),
          offset,
          obj.view.shape,
          strides,
          False,
          {},
      )
      return self.save_reduce(function, arguments)
    return super().save(obj, save_persistent_id)


class _Storage:

  def __init__(self, data):
    self.data = data


class _names:  # noqa: N801
  """Temporarily provides the names that the pickler looks up."""

  def __enter__(self):
    torch, utils = types.ModuleType('torch'), types.ModuleType('torch._utils')

    def _rebuild_tensor_v2():
      raise AssertionError('only named, never called')

    _rebuild_tensor_v2.__module__ = 'torch._utils'
    _rebuild_tensor_v2.__qualname__ = '_rebuild_tensor_v2'
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    found = {'_rebuild_tensor_v2': _rebuild_tensor_v2}
    for name in _STORAGES.values():
      found[name] = type(name, (), {'__module__': 'torch'})
      setattr(torch, name, found[name])
    stand_ins = {'torch': torch, 'torch._utils': utils}
    # Keeps a real PyTorch, which cannot be imported a second time.
    self._before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules |= stand_ins
    return found

  def __exit__(self, *_):
    for name, module in self._before.items():
      del sys.modules[name]
      if module is not None:
        sys.modules[name] = module
