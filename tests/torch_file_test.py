"""Files of `torch.save`, read without PyTorch and without running anything."""

import argparse
from collections import OrderedDict
import os
import pathlib
import pickle
import zipfile

import numpy as np
import pytest
import torch_pickles

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import torch_file


def test_tensors_views_and_what_lies_between(tmp_path):
  path = tmp_path / 'a.pth'
  weight = np.arange(24, dtype=np.float32)
  transposed = weight[4:16].reshape(3, 4).T
  value = {
      'model': OrderedDict(
          weight=np.float32([[1, 2], [3, 4]]),
          view=torch_pickles.View(weight, transposed),
          half=np.float16([0.5]),
          count=np.array(7, np.int64),
          empty=np.zeros((0, 3), np.float32),
      ),
      'epoch': 299,
      'args': argparse.Namespace(lr=1e-3),
      'scores': [0.5, (1, 2), None, 'x'],
      'best': np.float64(83.7),
  }
  torch_pickles.save(path, value)
  read = torch_file.read(path)
  assert read['epoch'] == 299 and read['scores'] == value['scores']
  # Their content is nobody's business.
  assert read['args'] == {} and read['best'] is None
  model = read['model']
  np.testing.assert_array_equal(model['weight'], [[1, 2], [3, 4]])
  np.testing.assert_array_equal(model['view'], transposed)
  assert model['half'].dtype == np.float16 and model['count'] == 7
  assert model['empty'].shape == (0, 3)


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
  torch_pickles.write_zip(
      'a.pth', {'data.pkl': pickle.dumps({'model': value}, protocol=2)}
  )
  with pytest.raises(UserError, match=f'names .*{name}'):
    torch_file.read(tmp_path / 'a.pth')
  assert not (tmp_path / 'executed').exists()


def test_attributes_are_never_set(tmp_path):
  """BUILD on what a name stands for would change it for everybody."""
  program = b'\x80\x02ccollections\nOrderedDict\n}X\x01\x00\x00\x00aK\x01sb.'
  torch_pickles.write_zip(tmp_path / 'a.pth', {'data.pkl': program})
  assert not hasattr(torch_file.read(tmp_path / 'a.pth'), 'a')


def _pickled(*arguments):
  """A program that rebuilds one tensor over the storage of `data/0`."""
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
        (0, (1000, 1000, 1000), (0, 0, 0)),  # 4 GB out of four numbers
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
  torch_pickles.write_zip(tmp_path / 'a.pth', contents)
  with pytest.raises(UserError, match='is refused: a tensor'):
    torch_file.read(tmp_path / 'a.pth')
  contents['data.pkl'] = _pickled(1, (3,), (1,))
  torch_pickles.write_zip(tmp_path / 'a.pth', contents)
  assert torch_file.read(tmp_path / 'a.pth').shape == (3,)


def test_a_tensor_is_no_storage(tmp_path):
  """Four numbers seen as one, then as a row from there: beyond the file."""
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
  torch_pickles.write_zip(tmp_path / 'a.pth', contents)
  with pytest.raises(UserError, match='a tensor has no storage'):
    torch_file.read(tmp_path / 'a.pth')


@pytest.mark.parametrize(
    ('program', 'said'),
    [
        (b'\x80\x02}' + b')' + b'\x85' * 60 + b'K\x01s.', 'a key is neither'),
        (b'\x80\x02]X\x01\x00\x00\x00aK\x01s.', 'no dict'),
        (b'\x80\x02ccollections\nOrderedDict\n}\x85R.', 'is damaged'),
        (b'\x80\x02(X\x01\x00\x00\x00aK\x01K\x01K\x01K\x01tQ.', 'outside'),
        (b'\x80\x04\x96\xff\xff\xff\xff\xff\x00\x00\x00.', 'is damaged'),
    ],
)
def test_crafted_programs_end(tmp_path, program, said):
  torch_pickles.write_zip(tmp_path / 'a.pth', {'data.pkl': program})
  with pytest.raises(UserError, match=said):
    torch_file.read(tmp_path / 'a.pth')


def test_a_file_of_torch_itself():
  """Written by `torch.save` of PyTorch 2.13, an optimiser and all."""
  path = pathlib.Path(__file__).parent / 'data' / 'torch_save.pth'
  read = torch_file.read(path)
  np.testing.assert_array_equal(
      read['model']['weight'], np.arange(6, dtype=np.float32).reshape(2, 3)
  )
  np.testing.assert_array_equal(read['view'], [[1, 3], [2, 4]])
  assert np.float32(read['half']).tolist() == [1.5, -2]
  assert read['epoch'] == 299 and read['args'] == {}
  assert read['optimizer']['state'][0]['exp_avg'].shape == (2, 3)


def test_damage_is_one_line(tmp_path):
  path = tmp_path / 'a.pth'
  with pytest.raises(UserError, match='does not exist'):
    torch_file.read(path)
  path.write_bytes(b'\x80\x02}q\x00.')  # before PyTorch 1.6: a bare pickle
  with pytest.raises(UserError, match=r'no PyTorch checkpoint.*before PyTorch'):
    torch_file.read(path)

  value = {'w': np.arange(4, dtype=np.float32)}
  torch_pickles.save(path, value, data_0=b'\0' * 12)
  with pytest.raises(UserError, match='has 3 numbers, not as many as it says'):
    torch_file.read(path)
  torch_pickles.save(path, value, byteorder=b'big')
  with pytest.raises(UserError, match="byte order is b'big'"):
    torch_file.read(path)
  torch_pickles.write_zip(path, {'data.pkl': _pickled(0, (4,), (1,))})
  with pytest.raises(UserError, match=r"data/0' is missing"):
    torch_file.read(path)
  torch_pickles.write_zip(path, {'other': b''})
  with pytest.raises(UserError, match=r'0 data\.pkl instead of one'):
    torch_file.read(path)
  torch_pickles.write_zip(path, {'data.pkl': b'\x80\x02}'})
  with pytest.raises(UserError, match='is damaged'):
    torch_file.read(path)
  torch_pickles.write_zip(
      path, {'data.pkl': b'N.' * 1000}, compression=zipfile.ZIP_DEFLATED
  )
  with pytest.raises(UserError, match='is compressed'):
    torch_file.read(path)

  torch_pickles.save(path, value)
  whole = path.read_bytes()
  for cut in range(0, len(whole), 29):  # never anything but one line
    path.write_bytes(whole[:cut])
    with pytest.raises(UserError):
      torch_file.read(path)


def _one_key(key):
  """A program of a dict with this key, pickled."""
  return b'\x80\x02}' + pickle.dumps(key, protocol=2)[2:-1] + b'K\x01s.'


@pytest.mark.parametrize(
    ('program', 'said'),
    [
        # Numbers that are equal modulo 2^61 - 1 have one hash: a dict of them,
        # and a memo, which `PUT` has them in, is read in quadratic time.
        (_one_key(2**61 - 1), 'a key is neither text nor a small number'),
        (b'\x80\x02Np2305843009213693951\n.', 'is damaged: KeyError'),
        (b'\x80\x02' + b']' * 2**24 + b'.', r'data.pkl has 16,777,219 bytes'),
        (b'\x80\x02I' + b'x' * 9000 + b'\n.', '^.{,300}$'),
    ],
)
def test_what_would_take_for_ever_or_fill_the_memory(tmp_path, program, said):
  torch_pickles.write_zip(tmp_path / 'a.pth', {'data.pkl': program})
  with pytest.raises(UserError, match=said):
    torch_file.read(tmp_path / 'a.pth')
  torch_pickles.write_zip(tmp_path / 'a.pth', {'data.pkl': _one_key(7)})
  assert torch_file.read(tmp_path / 'a.pth') == {7: 1}


def test_a_file_that_cannot_be_opened(tmp_path):
  with pytest.raises(UserError, match=r'cannot be read: .*directory'):
    torch_file.read(tmp_path)
