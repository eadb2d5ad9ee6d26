"""Against SciPy, which comes with JAX, as the writer."""

import io
import struct

import numpy as np
import pytest
import scipy.io

from gswinrmt_jax.data import mat_file


def written(variables, **options):
  file = io.BytesIO()
  scipy.io.savemat(file, variables, **options)
  return file.getvalue()


def synsets(wnids):
  """Returns the like of `synsets` in ImageNet's meta.mat, ids from 1."""
  fields = [('ILSVRC2012_ID', 'O'), ('WNID', 'O'), ('children', 'O')]
  rows = [
      (float(row), wnid, np.arange(row, dtype=np.uint8))
      for row, wnid in enumerate(wnids, start=1)
  ]
  return {'synsets': np.array(rows, fields)[:, None]}


@pytest.mark.parametrize('compressed', [False, True])
def test_structures(compressed):
  content = written(
      synsets(['n00000003', 'n00000001', 'n2']), do_compression=compressed
  )
  found = mat_file.read(content)['synsets']
  assert [entry['WNID'] for entry in found] == ['n00000003', 'n00000001', 'n2']
  assert [entry['ILSVRC2012_ID'].tolist() for entry in found] == [
      [1.0],
      [2.0],
      [3.0],
  ]
  assert [entry['children'].tolist() for entry in found] == [
      [0],
      [0, 1],
      [0, 1, 2],
  ]


@pytest.mark.parametrize('kind', 'i1 u1 i2 u2 i4 u4 i8 u8 f4 f8'.split())
def test_numbers(kind):
  values = np.array([[3, 100, 7], [5, 1, 120]], kind)
  found = mat_file.read(written({'some': values}))['some']
  # Column by column, as MATLAB keeps them.
  np.testing.assert_array_equal(found, values.T.ravel())


def test_text_and_cells():
  cells = np.array([['köter', np.array([2])]], object)
  found = mat_file.read(written({'c': cells, 't': 'ж'}))
  assert found['t'] == 'ж'
  assert found['c'][0] == 'köter' and found['c'][1].tolist() == [2]


def test_big_endian():
  # uint8 [3] named 'x', written by hand.
  def element(kind, data):
    padded = data + bytes(-len(data) % 8)
    return struct.pack('>2I', kind, len(data)) + padded

  array = (
      element(6, struct.pack('>2I', 9, 0))
      + element(5, struct.pack('>2i', 1, 3))
      + struct.pack('>2H4s', 1, 1, b'x')
      + element(4, struct.pack('>3H', 1, 500, 3))
  )
  header = b' ' * 124 + b'\x01\x00MI'
  found = mat_file.read(header + element(14, array))
  assert found['x'].tolist() == [1, 500, 3]


def test_what_is_none():
  content = written(synsets(['n00000001', 'n00000002']), do_compression=False)
  with pytest.raises(ValueError, match='not a MATLAB 5 file'):
    mat_file.read(b'nothing')
  with pytest.raises(ValueError, match='cut off'):
    mat_file.read(content[:-100])
  content = bytearray(written(synsets(['n1']), do_compression=True))
  content[150] ^= 0xFF
  with pytest.raises(ValueError, match='damaged MATLAB file'):
    mat_file.read(bytes(content))
  with pytest.raises(ValueError, match='class 5'):
    mat_file.read(written({'x': scipy.sparse.eye(3, format='csc')}))
