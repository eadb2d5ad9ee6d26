"""Any bytes as a checkpoint: arrays, or one clear line; nothing is executed."""

import io
import pathlib
import pickle
import zipfile

import fuzz
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import rmt_checkpoint, safetensors_file

_SAVED = pathlib.Path(__file__).parent / 'data' / 'torch_save.pth'
_OPCODES = sorted(
    value
    for name, value in vars(pickle).items()
    if name.isupper() and isinstance(value, bytes) and len(value) == 1
)
_NAMES = st.sampled_from(
    [
        (b'posix', b'system'),
        (b'builtins', b'eval'),
        (b'builtins', b'__import__'),
        (b'__builtin__', b'open'),
        (b'os', b'path.join'),
        (b'pickle', b'_Unpickler'),
        (b'numpy', b'load'),
        (b'gswinrmt_jax.weights.torch_file', b'read'),
        (b'collections', b'OrderedDict'),
        (b'collections', b'OrderedDict.__init__.__globals__'),
        (b'argparse', b'Namespace'),
        (b'torch', b'FloatStorage'),
        (b'torch', b'Size'),
        (b'torch._utils', b'_rebuild_tensor_v2'),
        (b'torch._utils', b'_rebuild_parameter'),
        (b'numpy.core.multiarray', b'scalar'),
        (b'_codecs', b'encode'),
        (b'copyreg', b'_reconstructor'),
    ]
)
_NUMBERS = st.sampled_from([-1, 0, 1, 4, 2**31, 2**40, 2**63, -(2**70)])
# Pieces of programs: sound ones, single opcodes, and any bytes.
_PIECES = st.one_of(
    _NAMES.map(lambda of: b'c%s\n%s\n' % of),
    st.tuples(st.sampled_from([b'i', b'c']), _NAMES).map(
        lambda of: of[0] + b'%s\n%s\n' % of[1]
    ),
    st.sampled_from(_OPCODES),
    st.text(max_size=6).map(
        lambda text: b'X'
        + len(text.encode()).to_bytes(4, 'little')
        + text.encode()
    ),
    _NUMBERS.map(lambda number: pickle.dumps(number, 2)[2:-1]),
    st.sampled_from([b'(', b't', b')', b'R', b'b', b's', b'u', b'Q', b'.']),
    st.sampled_from(
        [b'}', b']', b'\x85', b'2', b'q\x00', b'h\x00', b'0', b'a']
    ),
    st.binary(max_size=5),
    st.just(
        b'ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n'
        b'FloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ'
    ),
)
_PROGRAMS = st.lists(_PIECES, max_size=30).map(
    lambda of: b'\x80\x02' + b''.join(of) + b'.'
)


def _zipped(program, root='archive', compression=zipfile.ZIP_STORED):
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w', compression) as archive:
    archive.writestr(f'{root}/data.pkl', program)
    archive.writestr(f'{root}/data/0', np.zeros(4, np.float32).tobytes())
  return file.getvalue()


def _damaged(whole):
  """Returns a file cut short, with bits turned, or with other bytes in it."""
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
    st.binary(max_size=400),
    _damaged(_SAVED.read_bytes()),
    _damaged(_zipped(pickle.dumps({'model': {'a': 1}}, 2))),
    st.builds(_zipped, _PROGRAMS, st.sampled_from(['archive', '..', '/etc'])),
    st.builds(_zipped, _PROGRAMS, compression=st.just(zipfile.ZIP_DEFLATED)),
    st.binary(max_size=60).map(lambda of: _zipped(b'\x80\x04' + of)),
)


def _never(*args, **how):
  raise AssertionError(f'executed: {args} {how}')


# What a program would begin with.
_DOORS = (
    'os.system',
    'os.popen',
    'subprocess.Popen',
    'builtins.eval',
    'pickle.loads',
    'numpy.load',
)


def _read(folder, content, reader=rmt_checkpoint.read, name='a.pth'):
  path = folder / name
  path.write_bytes(content)
  with fuzz.bounded(20, 0.5), pytest.MonkeyPatch.context() as patch:
    for door in _DOORS:
      patch.setattr(door, _never)
    try:
      reader(path)
    except UserError as error:
      fuzz.check_line(str(error))
  assert [part.name for part in folder.iterdir()] == [name]


@fuzz.few(400)
@given(_FILES)
def test_files(tmp_path, content):
  _read(tmp_path, content)


def _safetensors():
  from safetensors import numpy as safetensors

  arrays = {'params/a': np.zeros((2, 3), np.float32)}
  return safetensors.save(arrays, metadata={'config': '{"architecture": 3}'})


def _with_header(header):
  return len(header).to_bytes(8, 'little') + header + b'\0' * 24


_TENSORS = st.one_of(
    _damaged(_safetensors()),
    st.binary(max_size=100),
    st.text(max_size=60).map(lambda text: _with_header(text.encode())),
    st.integers(0, 2**64 - 1).map(lambda n: n.to_bytes(8, 'little') + b'{}'),
)


@fuzz.few(200)
@given(_TENSORS)
def test_safetensors(tmp_path, content):
  _read(tmp_path, content, safetensors_file.read, 'a.safetensors')


@pytest.mark.slow
def test_many_files(tmp_path):
  fuzz.campaign(
      'files of PyTorch', 20_000, _FILES, lambda of: _read(tmp_path, of)
  )


@pytest.mark.slow
def test_many_safetensors(tmp_path):
  fuzz.campaign(
      'files of safetensors',
      10_000,
      _TENSORS,
      lambda of: _read(tmp_path, of, safetensors_file.read, 'a.safetensors'),
  )
