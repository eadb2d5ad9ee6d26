"""Tests weights in safetensors files and in files of `torch.save`."""

import io
import json
import os
import pathlib
import pickle
import zipfile

from flax import traverse_util
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
import jax
import numpy as np
import pytest
import random_variables
from tiny_card import CARD

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import (
    load,
    rmt_checkpoint,
    safetensors_file,
    torch_file,
)


def test_safetensors_keep_arrays_and_card(tmp_path):
  path = tmp_path / 'model.safetensors'
  variables = random_variables.nested(CARD.make_model(), (1, 32, 48, 3))
  # An array that is not C-contiguous.
  kernel = np.asarray(variables['params']['head']['kernel']).copy(order='F')
  variables['params']['head']['kernel'] = kernel
  safetensors_file.write(path, variables, CARD)
  flat, card = safetensors_file.read(path)
  read = traverse_util.unflatten_dict(flat, sep='/')
  assert card.make_model() == CARD.make_model()
  jax.tree.map(np.testing.assert_array_equal, read, variables)
  assert not list(tmp_path.glob('*.part'))

  whole = path.read_bytes()
  path.write_bytes(whole[:-9])
  with pytest.raises(UserError, match='is damaged'):
    safetensors_file.read(path)
  with pytest.raises(UserError, match='does not exist'):
    safetensors_file.read(tmp_path / 'other.safetensors')
  with pytest.raises(UserError, match='cannot be read: Is a directory'):
    safetensors_file.read(tmp_path)


def test_any_flipped_bit_of_safetensors_is_noticed(tmp_path):
  """In arrays, their names and the card; only the checksum may get lost."""
  path = tmp_path / 'model.safetensors'
  variables = {'params': {'head': {'bias': np.float32([1.0, 2.0, 3.0])}}}
  safetensors_file.write(path, variables, CARD)
  whole = path.read_bytes()
  expected, unchanged = safetensors_file.read(path)
  for place in range(len(whole)):
    damaged = bytearray(whole)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    try:
      found, card = safetensors_file.read(path)
    except UserError as error:
      assert '\n' not in str(error)
    else:
      assert card == unchanged
      jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_names_of_arrays_cannot_steer_the_terminal(tmp_path):
  path = tmp_path / 'model.safetensors'
  variables = {'\x1b[2J': np.zeros(3, np.float32)}
  safetensors_file.write(path, variables, CARD)
  with pytest.raises(UserError, match=r'not have the arrays .*\\x1b') as caught:
    load.load(path)
  assert str(caught.value).isprintable()


def test_the_card_may_lie_beside(tmp_path):
  from safetensors import numpy as safetensors

  path = tmp_path / 'model.safetensors'
  path.write_bytes(safetensors.save({'params/head/bias': np.zeros(3)}))
  with pytest.raises(UserError, match='which model it is for'):
    safetensors_file.read(path)
  (tmp_path / 'config.json').write_text(json.dumps(CARD.to_dict()))
  assert safetensors_file.read(path)[1].class_names == CARD.class_names


def _write_zip(path, contents, compression=zipfile.ZIP_STORED):
  with zipfile.ZipFile(path, 'w', compression) as archive:
    for name, data in contents.items():
      archive.writestr(f'archive/{name}', data)


class _Evil:

  def __init__(self, function, *arguments):
    self.reduced = function, arguments

  def __reduce__(self):
    return self.reduced


@pytest.mark.parametrize(
    ('value', 'name'),
    [
        (_Evil(os.system, 'touch executed'), 'posix.system'),
        (_Evil(eval, '1'), '__builtin__.eval'),
        (_Evil(getattr, {}, 'get'), '__builtin__.getattr'),
        (np.zeros(2), 'numpy.*_reconstruct'),
    ],
)
def test_any_other_name_is_refused_and_not_run(
    tmp_path, monkeypatch, value, name
):
  monkeypatch.chdir(tmp_path)
  _write_zip('a.pth', {'data.pkl': pickle.dumps({'model': value}, protocol=2)})
  with pytest.raises(UserError, match=f'names .*{name}'):
    torch_file.read(tmp_path / 'a.pth')
  assert not (tmp_path / 'executed').exists()


def test_attributes_are_never_set(tmp_path):
  """BUILD on a named object would change it for the whole process."""
  program = b'\x80\x02ccollections\nOrderedDict\n}X\x01\x00\x00\x00aK\x01sb.'
  _write_zip(tmp_path / 'a.pth', {'data.pkl': program})
  assert not hasattr(torch_file.read(tmp_path / 'a.pth'), 'a')


def _pickled(*arguments):
  """Returns a pickle that rebuilds one tensor over the storage `data/0`."""
  offset, size, stride = arguments
  return b''.join(
      [
          b'\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((',
          b'X\x07\x00\x00\x00storagectorch\nFloatStorage\n',
          b'X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ',
          b''.join(
              pickle.dumps(part, protocol=2)[2:-1]
              for part in (offset, size, stride)
          ),
          b'\x89}tR.',
      ]
  )


@pytest.mark.parametrize(
    ('offset', 'size', 'stride'),
    [
        (1, (4,), (1,)),  # past the end
        (0, (2, 3), (2, 1)),
        (-1, (2,), (1,)),  # before the start
        (3, (2,), (-1,)),
        (0, (1000, 1000, 1000), (0, 0, 0)),  # 4 GB from 4 elements
        (0, (2, 2), (1,)),
        (0, (2.0,), (1,)),
        (0, (2**60,) * 9, (0,) * 9),
    ],
)
def test_a_tensor_must_lie_in_its_storage(tmp_path, offset, size, stride):
  contents = {
      'data.pkl': _pickled(offset, size, stride),
      'data/0': np.zeros(4, np.float32).tobytes(),
  }
  _write_zip(tmp_path / 'a.pth', contents)
  with pytest.raises(UserError, match='is refused: a tensor'):
    torch_file.read(tmp_path / 'a.pth')
  contents['data.pkl'] = _pickled(1, (3,), (1,))
  _write_zip(tmp_path / 'a.pth', contents)
  assert torch_file.read(tmp_path / 'a.pth').shape == (3,)


def test_a_tensor_is_no_storage(tmp_path):
  """Used as a storage, a tensor of repeats would reach past the file's end."""
  inner = _pickled(3, (4,), (0,))[2:-1]
  outer = b''.join(
      [
          b'\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(',
          inner,
          b'K\x00(K\x04t(K\x01t\x89}tR.',
      ]
  )
  contents = {
      'data.pkl': outer,
      'data/0': np.zeros(4, np.float32).tobytes(),
  }
  _write_zip(tmp_path / 'a.pth', contents)
  with pytest.raises(UserError, match='a tensor has no storage'):
    torch_file.read(tmp_path / 'a.pth')


def test_a_file_of_torch_itself():
  """Written by `torch.save` of PyTorch 2.13, optimizer state included."""
  path = pathlib.Path(__file__).parents[1] / 'fixtures' / 'torch_save.pth'
  read = torch_file.read(path)
  np.testing.assert_array_equal(
      read['model']['weight'], np.arange(6, dtype=np.float32).reshape(2, 3)
  )
  np.testing.assert_array_equal(read['view'], [[1, 3], [2, 4]])
  assert np.float32(read['half']).tolist() == [1.5, -2]
  assert read['epoch'] == 299 and read['args'] == {}
  assert read['optimizer']['state'][0]['exp_avg'].shape == (2, 3)


def test_torch_loads_what_is_written(tmp_path):
  torch = pytest.importorskip('torch', reason='PyTorch is not installed')
  path = tmp_path / 'a.pth'
  arrays = {
      'kernel': np.arange(120, dtype=np.float32).reshape(1, 2, 3, 4, 5),
      'strided': np.arange(6, dtype=np.float32).reshape(2, 3).T,
      'empty': np.zeros((0, 3), np.float32),
      'count': np.array(7, np.int64),
  }
  torch_file.write(path, {'model': arrays})
  read = torch.load(path, weights_only=True)['model']
  assert read.keys() == arrays.keys()
  for name, array in arrays.items():
    assert read[name].shape == array.shape
    np.testing.assert_array_equal(read[name].numpy(), array)


def test_damage_is_one_line(tmp_path):
  path = tmp_path / 'a.pth'
  with pytest.raises(UserError, match='does not exist'):
    torch_file.read(path)
  path.write_bytes(b'\x80\x02}q\x00.')  # before PyTorch 1.6: a bare pickle
  with pytest.raises(
      UserError, match=r'not a PyTorch checkpoint.*before PyTorch'
  ):
    torch_file.read(path)

  tensor = _pickled(0, (4,), (1,))
  _write_zip(path, {'data.pkl': tensor, 'data/0': bytes(12)})
  with pytest.raises(UserError, match='has 3 numbers, not as many as it says'):
    torch_file.read(path)
  _write_zip(path, {'data.pkl': tensor, 'byteorder': b'big'})
  with pytest.raises(UserError, match="byte order is b'big'"):
    torch_file.read(path)
  _write_zip(path, {'data.pkl': tensor})
  with pytest.raises(UserError, match=r"data/0' is missing"):
    torch_file.read(path)
  _write_zip(path, {'other': b''})
  with pytest.raises(UserError, match=r'0 data\.pkl instead of one'):
    torch_file.read(path)
  _write_zip(path, {'data.pkl': b'\x80\x02}'})
  with pytest.raises(UserError, match='is damaged'):
    torch_file.read(path)
  _write_zip(path, {'data.pkl': b'N.' * 1000}, compression=zipfile.ZIP_DEFLATED)
  with pytest.raises(UserError, match='is compressed'):
    torch_file.read(path)

  torch_file.write(path, {'w': np.arange(4, dtype=np.float32)})
  whole = path.read_bytes()
  for cut in range(0, len(whole), 29):  # always a one-line error
    path.write_bytes(whole[:cut])
    with pytest.raises(UserError):
      torch_file.read(path)


_TEXT = b'X\x01\x00\x00\x00a'
# What follows the kind of a persistent id.
_REST = b'ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04'


@pytest.mark.parametrize(
    ('program', 'said'),
    [
        (b']' + _TEXT + b'K\x01s', 'is damaged'),
        (b'ccollections\nOrderedDict\n}\x85R', 'is damaged'),
        (b'K\x01Q', 'is damaged'),
        (b'(' + _TEXT + _REST + b'tQ', 'outside of'),
        (b'\x96\xff\xff\xff\xff\xff\x00\x00\x00', 'is damaged'),
        (b'Np7\n', 'an opcode PUT'),
        (b'I' + b'x' * 9000 + b'\n', '^.{,300}$'),
    ],
)
def test_what_torch_does_not_write_is_one_line(tmp_path, program, said):
  path = tmp_path / 'a.pth'
  path.write_bytes(_zipped(b'\x80\x04' + program + b'.'))
  with pytest.raises(UserError, match=said):
    torch_file.read(path)


_SAVED = pathlib.Path(__file__).parents[1] / 'fixtures' / 'torch_save.pth'


def _zipped(program):
  file = io.BytesIO()
  _write_zip(file, {'data.pkl': program, 'data/0': bytes(16)})
  return file.getvalue()


def _damaged(whole):
  """Returns a strategy for truncated, altered or spliced copies of a file."""
  turned = st.lists(
      st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)),
      min_size=1,
      max_size=6,
  )

  def turn(places):
    content = bytearray(whole)
    for place, value in places:
      content[place] = value
    return bytes(content)

  pieces = st.tuples(
      st.integers(0, len(whole)), st.integers(0, len(whole)), st.binary()
  )
  return st.one_of(
      turned.map(turn),
      st.integers(0, len(whole)).map(lambda end: whole[:end]),
      pieces.map(lambda of: whole[: of[0]] + of[2] + whole[of[1] :]),
  )


_FILES = st.one_of(
    _damaged(_SAVED.read_bytes()),
    _damaged(_zipped(pickle.dumps({'model': {'a': 1}}, 2))),
)


@settings(
    max_examples=400,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(_FILES)
def test_damaged_files(tmp_path, content):
  path = tmp_path / 'a.pth'
  path.write_bytes(content)
  try:
    rmt_checkpoint.read(path)
  except UserError as error:
    assert '\n' not in str(error)
    # A few changed bytes must not ask for memory without end.
    assert not isinstance(error.__cause__, MemoryError)
