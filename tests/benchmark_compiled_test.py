"""Counting a compiled program; compiling for a GPU that is not here."""

import jax
import pytest

from gswinrmt_jax.benchmark import compiled, hlo, models
from gswinrmt_jax.errors import UserError

PROGRAM = """
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[2]{0})}

%inner (p.0: f32[2]) -> f32[2] {
  %p.0 = f32[2]{0} parameter(0)
  ROOT %add.1 = f32[2]{0} add(%p.0, %p.0), metadata={op_name="a(b"}
}

ENTRY %main.3 (x: f32[2], y: pred[5]) -> (f32[2], pred[5]) {
  %x = f32[2]{0} parameter(0)
  %y = pred[5]{0} parameter(1)
  %f-1 = f32[2]{0:T(8,128)} fusion(%x), kind=kLoop, calls=%inner
  ROOT %out = (f32[2]{0}, /*index=1*/pred[5]{0}) tuple(%f-1, /*index=1*/%y)
}
"""


def test_computations_and_instructions():
  start, computations = hlo.parse(PROGRAM)
  assert start == 'main.3'
  assert list(computations) == ['inner', 'main.3']
  entry = computations['main.3']
  assert list(entry) == ['x', 'y', 'f-1', 'out']
  fusion = entry['f-1']
  assert (fusion.opcode, fusion.operands) == ('fusion', ('x',))
  assert fusion.called == ('inner',)
  assert fusion.attribute(r'kind=(\w+)') == 'kLoop'
  assert fusion.attribute(r'sort=(\w+)') == ''
  # Parentheses in a layout and in a name do not end a type or the operands.
  assert fusion.num_bytes == 8
  assert computations['inner']['add.1'].operands == ('p.0', 'p.0')
  assert entry['out'].operands == ('f-1', 'y')


@pytest.mark.parametrize(
    ('shape', 'num_bytes'),
    [
        ('f32[]', 4),
        ('bf16[2,3]{1,0}', 12),
        ('pred[7]{0}', 7),
        ('s4[8]{0}', 4),
        ('f8e4m3fn[3]{0}', 3),
        ('u8[0]{0}', 0),
        ('token[]', 0),
        ('(f32[2,2]{1,0:T(8,128)}, (c64[3]{0}, s32[]))', 16 + 24 + 4),
    ],
)
def test_bytes_of_a_type(shape, num_bytes):
  assert hlo.shape_bytes(shape) == num_bytes


def test_a_part_of_a_tuple_that_is_named_by_its_number():
  text = PROGRAM.replace(
      '%f-1 = f32[2]{0:T(8,128)} fusion(%x)',
      '%f = (f32[2,3]{1,0:T(8,128)}, f32[2]{0}) fusion(%x)',
  )
  entry = hlo.parse(text.replace('%f-1', '%f#1'))[1]['main.3']
  assert list(entry) == ['x', 'y', 'f', 'f#1', 'out']
  part = entry['f#1']
  assert (part.opcode, part.operands) == ('get-tuple-element', ('f',))
  assert part.num_bytes == 8 and entry['f'].num_bytes == 32
  assert entry['out'].operands == ('f#1', 'y')


def test_called_computations_in_order():
  _, computations = hlo.parse("""
ENTRY %e (p: s32[]) -> f32[] {
  %w = s32[] while(%p), condition=%c, body=%b
  ROOT %k = f32[] conditional(%w), branch_computations={%one, %two}
}
""")
  entry = computations['e']
  assert entry['w'].called == ('c', 'b')
  assert entry['k'].called == ('one', 'two')


def test_what_is_no_program_is_refused():
  with pytest.raises(ValueError, match='no computation is ENTRY'):
    hlo.parse('HloModule x\n')


LIBRARY = """
%gemm (p0: bf16[4,8]) -> bf16[4,4] {
  %p0 = bf16[4,8]{1,0} parameter(0)
  ROOT %d = bf16[4,4]{1,0} dot(%p0, %p0)
}

%column (p0: bf16[4,4]) -> f32[4] {
  %p0 = bf16[4,4]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %wide = f32[4,4]{1,0} convert(%p0)
  ROOT %r = f32[4]{0} reduce(%wide, %zero), dimensions={0}, to_apply=%add
}

ENTRY %main (x: bf16[4,8], w: bf16[8,4]) -> (f32[4], bf16[4,4]) {
  %x = bf16[4,8]{1,0} parameter(0)
  %w = bf16[8,4]{1,0} parameter(1)
  %view = bf16[32]{0} bitcast(%x)
  %dot = bf16[4,4]{1,0} fusion(%x), kind=kCustom, calls=%gemm, \
metadata={op_name="jit(f)/jvp(N)/dot"}, \
backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  %conv = (bf16[4,4]{1,0}, u8[0]{0}) custom-call(%dot, %w), \
custom_call_target="__cudnn$convForward", \
metadata={op_name="jit(f)/transpose(jvp(N))/conv"}
  %part = bf16[4,4]{1,0} get-tuple-element(%conv), index=0
  %mm = bf16[4,4]{1,0} custom-call(%part, %w), \
custom_call_target="__cublas$lt$matmul"
  %copy = bf16[4,4]{0,1} copy(%mm)
  %start = f32[4]{0} all-reduce-start(%sums), to_apply=%add
  %sums = f32[4]{0} fusion(%copy), kind=kInput, calls=%column
  %done = f32[4]{0} all-reduce-done(%start)
  ROOT %out = (f32[4]{0}, bf16[4,4]{1,0}) tuple(%done, %copy)
}
"""


def test_launches_by_kind():
  counts = hlo.count(LIBRARY)
  assert counts.kernels == {
      'triton': 1,
      'cudnn': 1,
      'cublas': 1,
      'copy': 1,
      'all-reduce': 1,
      'reduce': 1,
  }
  assert counts.kernels.total() == 6


def test_bytes_at_the_boundaries():
  counts = hlo.count(LIBRARY)
  # dot 64; conv 32 + 64; mm 32 + 64; copy 32; all-reduce 16; sums 32
  assert counts.bytes_read == 64 + 96 + 96 + 32 + 16 + 32
  assert counts.bytes_written == 32 + 32 + 32 + 32 + 16 + 16


LOOP = """
%twice (p: f32[6]) -> f32[6] {
  %p = f32[6]{0} parameter(0)
  ROOT %a = f32[6]{0} add(%p, %p)
}

%branch (p: f32[6]) -> f32[6] {
  %p = f32[6]{0} parameter(0)
  ROOT %n = f32[6]{0} negate(%p)
}

%body (c: (s32[], f32[6])) -> (s32[], f32[6]) {
  %c = (s32[], f32[6]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %v = f32[6]{0} get-tuple-element(%c), index=1
  %f = f32[6]{0} fusion(%v), kind=kLoop, calls=%twice
  %k = f32[6]{0} conditional(%i, %f, %f), branch_computations={%branch, %branch}
  ROOT %t = (s32[], f32[6]{0}) tuple(%i, %k)
}

%until (c: (s32[], f32[6])) -> pred[] {
  %c = (s32[], f32[6]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %l = pred[] compare(%i, %i), direction=LT
}

ENTRY %main (c: (s32[], f32[6])) -> (s32[], f32[6]) {
  %c = (s32[], f32[6]{0}) parameter(0)
  ROOT %w = (s32[], f32[6]{0}) while(%c), condition=%until, body=%body, TRIPS
}
"""


def test_a_loop_counts_as_often_as_it_is_done():
  counts = hlo.count(
      LOOP.replace('TRIPS', 'backend_config={"known_trip_count":{"n":"5"}}')
  )
  # Both branches are counted.
  assert counts.kernels == {'loop': 5, 'negate': 10, 'compare': 5}
  assert counts.bytes_read == 5 * (24 + 2 * 24 + 8)
  assert counts.bytes_written == 5 * (24 + 2 * 24 + 1)


def test_a_loop_of_unknown_length_counts_once():
  counts = hlo.count(LOOP.replace('TRIPS', 'metadata={}'))
  assert counts.kernels['loop'] == 1


def _missing():
  try:
    compiled.check_installed()
  except UserError as error:
    return str(error)
  return ''


needs_plugin = pytest.mark.skipif(bool(_missing()), reason=_missing())


def test_an_old_jax_is_refused(monkeypatch):
  monkeypatch.setattr(jax, '__version_info__', (0, 10, 2))
  with pytest.raises(UserError, match=r'needs jax 0.11 or later .*pip install'):
    compiled.check_installed()


def test_a_missing_plugin_is_refused(monkeypatch):
  monkeypatch.setattr(jax, '__version_info__', (0, 12, 0))
  monkeypatch.setattr(compiled.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(
      UserError, match='pip install --no-deps jax-cuda12-plugin'
  ):
    compiled.check_installed()


def test_the_target_is_one_message():
  text = compiled.target_config('h200')
  assert text.count('{') == text.count('}')
  assert 'core_count: 132' in text and 'major: 9' in text


@needs_plugin
def test_counts_of_a_tiny_model():
  spec = models.spec(
      'retention_compact', 'train', batch=8, image_size=16, classes=10
  )
  spec['dtype'] = 'bfloat16'
  spec['fields'] = {
      'widths': (16, 32),
      'depths': (1, 1),
      'num_heads': (2, 4),
      'mlp_ratios': (2.0, 2.0),
      'layer_scale': (1e-2, 1e-2),
      'decay_ranges': (4.0, 4.0),
  }
  found = compiled.count_step(spec, 'h200')
  assert found['kernels'] > 50
  assert found['bytes_read'] > found['bytes_written'] > 0
  assert found['temporary_bytes'] > 0
  assert sum(found['kernels_by_kind'].values()) == found['kernels']
