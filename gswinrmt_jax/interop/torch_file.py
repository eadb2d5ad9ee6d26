"""Reads what `torch.save` wrote, without PyTorch and without running anything.

A pickle is a program. Here it may build containers, numbers, strings and
tensors, the few names of `_Unpickler._names`; any other name ends the reading.
"""

from collections import OrderedDict
from collections.abc import Callable
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


class _RefusedError(Exception):
  """What the file asks for is not on the list, or does not fit together."""


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
      return _load(archive)
  except FileNotFoundError:
    raise UserError(f'{path} does not exist') from None
  except zipfile.BadZipFile as error:
    raise UserError(
        f'{path} is no PyTorch checkpoint, or a cut one ({error}); files from '
        'before PyTorch 1.6 have to be loaded and saved again with a newer one'
    ) from error
  except _RefusedError as error:
    raise UserError(f'{path} is refused: {error}') from error
  except OSError:
    raise
  except Exception as error:  # Whatever damaged bytes lead to.
    raise UserError(
        f'{path} is damaged: {type(error).__name__}: {error}'
    ) from error


def _load(archive):
  programs = [name for name in archive.namelist() if name.endswith('/data.pkl')]
  if len(programs) != 1:
    raise _RefusedError('it has no data.pkl, so torch.save did not write it')
  root = programs[0].removesuffix('data.pkl')
  if f'{root}byteorder' in archive.namelist():
    order = _entry(archive, f'{root}byteorder').strip()
    if order != b'little':
      raise _RefusedError(f'its byte order is {order.decode(errors="replace")}')
  program = io.BytesIO(_entry(archive, programs[0]))
  return _Unpickler(
      program, lambda key: _entry(archive, f'{root}data/{key}')
  ).load()


def _entry(archive, name):
  """Returns the bytes of a member, which is as large as it looks."""
  try:
    member = archive.getinfo(name)
  except KeyError:
    raise _RefusedError(f'its part {name} is missing') from None
  # torch.save stores; only what is compressed can be larger than the file.
  if member.compress_type != zipfile.ZIP_STORED:
    raise _RefusedError(f'its part {name} is compressed')
  return archive.read(member)


# The unpickler written in Python: that in C makes room for whatever memo index
# a crafted file names, up to all memory.
class _Unpickler(pickle._Unpickler):
  """Knows containers and tensors, and sets no attributes."""

  dispatch: ClassVar = dict(pickle._Unpickler.dispatch)
  # It would take whatever memory a crafted file asks for.
  del dispatch[pickle.BYTEARRAY8[0]]

  def __init__(self, file: io.BytesIO, entry: Callable[[str], bytes]):
    super().__init__(file)
    self._entry = entry
    self._storages = {}
    self._names = {
        'collections.OrderedDict': OrderedDict,
        'torch.Size': tuple,
        'torch._utils._rebuild_tensor_v2': _rebuild_tensor,
        'torch._utils._rebuild_parameter': _rebuild_parameter,
        # Settings and figures that training scripts save along: left out.
        'argparse.Namespace': dict,
        'yacs.config.CfgNode': dict,
        'numpy.dtype': _left_out,
        'numpy.core.multiarray.scalar': _left_out,
        'numpy._core.multiarray.scalar': _left_out,
        '_codecs.encode': _left_out,
        **{f'torch.{name}': dtype for name, dtype in _DTYPES.items()},
    }

  def find_class(self, module: str, name: str) -> Any:
    """Returns what a name stands for, if it is on the list."""
    full = f'{module}.{name}'
    if full not in self._names:
      raise _RefusedError(
          f'it names {full}, which is no tensor and no container'
      )
    return self._names[full]

  def persistent_load(self, pid: Any) -> np.ndarray:
    """Returns a storage: `('storage', type, key, location, elements)`."""
    kind, dtype, key, _, count = pid
    if kind != 'storage' or not isinstance(key, str):
      raise _RefusedError(f'it refers to {kind!r} outside of the file')
    if key not in self._storages:
      data = np.frombuffer(self._entry(key), dtype)
      if len(data) != count:
        raise _RefusedError(
            f'its part {key} has {len(data)} numbers instead of {count}'
        )
      self._storages[key] = data
    return self._storages[key]

  def _drop_state(self):
    self.stack.pop()

  dispatch[pickle.BUILD[0]] = _drop_state


def _rebuild_tensor(storage, offset, size, stride, *_):
  """Returns a view of the storage, which lies inside of it."""
  if len(size) != len(stride) or min((offset, *size, *stride)) < 0:
    raise _RefusedError(f'a tensor has size {size} and stride {stride}')
  count = math.prod(size)
  last = offset + sum(
      (n - 1) * step for n, step in zip(size, stride, strict=True)
  )
  if count > len(storage) or (count and last >= len(storage)):
    raise _RefusedError(f'a tensor of size {size} is larger than its storage')
  step = storage.itemsize
  return np.lib.stride_tricks.as_strided(
      storage[offset:], size, [step * n for n in stride], writeable=False
  )


def _rebuild_parameter(data, *_):
  return data


def _left_out(*_):
  return None
