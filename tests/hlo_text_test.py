"""Reading the text of a program."""

import pytest

from gswinrmt_jax.benchmark import hlo_text

TEXT = """
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
  module = hlo_text.parse(TEXT)
  assert module.entry == 'main.3'
  assert list(module.computations) == ['inner', 'main.3']
  entry = module.computations['main.3']
  assert list(entry) == ['x', 'y', 'f-1', 'out']
  fusion = entry['f-1']
  assert (fusion.opcode, fusion.operands) == ('fusion', ('x',))
  assert fusion.called == ('inner',)
  assert fusion.attribute(r'kind=(\w+)') == 'kLoop'
  assert fusion.attribute(r'sort=(\w+)') == ''
  assert entry['y'].literal == '1'
  assert [i.root for i in entry.values()] == [False, False, False, True]
  # Parentheses in a layout and in a name do not end a type or the operands.
  assert fusion.num_bytes == 8
  assert module.computations['inner']['add.1'].operands == ('p.0', 'p.0')
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
  assert hlo_text.shape_bytes(shape) == num_bytes


def test_a_part_of_a_tuple_that_is_named_by_its_number():
  text = TEXT.replace(
      '%f-1 = f32[2]{0:T(8,128)} fusion(%x)',
      '%f = (f32[2,3]{1,0:T(8,128)}, f32[2]{0}) fusion(%x)',
  )
  entry = hlo_text.parse(text.replace('%f-1', '%f#1')).computations['main.3']
  assert list(entry) == ['x', 'y', 'f', 'f#1', 'out']
  part = entry['f#1']
  assert (part.opcode, part.operands) == ('get-tuple-element', ('f',))
  assert part.num_bytes == 8 and entry['f'].num_bytes == 32
  assert entry['out'].operands == ('f#1', 'y')


def test_called_computations_in_order():
  module = hlo_text.parse("""
ENTRY %e (p: s32[]) -> f32[] {
  %w = s32[] while(%p), condition=%c, body=%b
  ROOT %k = f32[] conditional(%w), branch_computations={%one, %two}
}
""")
  entry = module.computations['e']
  assert entry['w'].called == ('c', 'b')
  assert entry['k'].called == ('one', 'two')


def test_what_is_no_program_is_refused():
  with pytest.raises(ValueError, match='no computation is ENTRY'):
    hlo_text.parse('HloModule x\n')
