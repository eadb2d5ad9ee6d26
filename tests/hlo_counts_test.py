"""Counting launches, bytes and collectives, on programs written by hand."""

from gswinrmt_jax.benchmark import hlo_counts

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


def test_launches_by_kind_and_phase():
  counts = hlo_counts.count(LIBRARY)
  assert counts.kernels == {
      'triton': 1,
      'cudnn': 1,
      'cublas': 1,
      'copy': 1,
      'collective': 1,
      'reduce': 1,
  }
  assert counts.total == 6
  assert counts.phases == {'forward': 1, 'backward': 1, 'rest': 4}
  assert counts.collectives == {'all-reduce': 1}


def test_bytes_at_the_boundaries():
  counts = hlo_counts.count(LIBRARY)
  # dot 64; conv 32 + 64; mm 32 + 64; copy 32; all-reduce 16; sums 32
  assert counts.bytes_read == 64 + 96 + 96 + 32 + 16 + 32
  assert counts.bytes_written == 32 + 32 + 32 + 32 + 16 + 16
  assert counts.num_bytes == counts.bytes_read + counts.bytes_written


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
  counts = hlo_counts.count(
      LOOP.replace('TRIPS', 'backend_config={"known_trip_count":{"n":"5"}}')
  )
  # Both branches are counted.
  assert counts.kernels == {'loop': 5, 'negate': 10, 'compare': 5}
  assert counts.bytes_read == 5 * (24 + 2 * 24 + 8)
  assert counts.bytes_written == 5 * (24 + 2 * 24 + 1)
  assert counts.unknown_loops == 0


def test_a_loop_of_unknown_length_counts_once_and_is_told():
  counts = hlo_counts.count(LOOP.replace('TRIPS', 'metadata={}'))
  assert counts.kernels['loop'] == 1
  assert counts.unknown_loops == 1


SLICES = """
%cut (a: f32[100], b: f32[100], i: s32[]) -> f32[10] {
  %a = f32[100]{0} parameter(0)
  %b = f32[100]{0} parameter(1)
  %i = s32[] parameter(2)
  %view = f32[10,10]{1,0} bitcast(%a)
  %s = f32[1,10]{1,0} slice(%view), slice={[2:3], [0:10]}
  %s2 = f32[2,10]{1,0} slice(%view), slice={[2:4], [0:10]}
  %d = f32[10]{0} dynamic-slice(%b, %i), dynamic_slice_sizes={10}
  %m = f32[10]{0} negate(%b)
  ROOT %sum = f32[10]{0} add(%d, %s, %s2, %m)
}

%place (a: f32[100], u: f32[10], i: s32[]) -> (f32[100], f32[10]) {
  %a = f32[100]{0} parameter(0)
  %u = f32[10]{0} parameter(1)
  %i = s32[] parameter(2)
  %n = f32[10]{0} negate(%u)
  %put = f32[100]{0} dynamic-update-slice(%a, %n, %i)
  ROOT %t = (f32[100]{0}, f32[10]{0}) tuple(%put, %n)
}

ENTRY %main (x: f32[100], y: f32[100], i: s32[]) -> (f32[100], f32[10]) {
  %x = f32[100]{0} parameter(0)
  %y = f32[100]{0} parameter(1)
  %i = s32[] parameter(2)
  %c = f32[10]{0} fusion(%x, %y, %i), kind=kLoop, calls=%cut
  ROOT %p = (f32[100]{0}, f32[10]{0}) fusion(%x, %c, %i), kind=kLoop, \
calls=%place
}
"""


def test_slices_are_read_and_updates_written_not_the_whole():
  counts = hlo_counts.count(SLICES)
  # x: slices of 10 and 20; y: whole, since it is also used whole; i.
  cut = 4 * (10 + 20) + 400 + 4
  place = 0 + 40 + 4
  assert counts.bytes_read == cut + place
  assert counts.bytes_written == 40 + (40 + 40)


BEHIND = """
%part (a: bf16[100], b: f32[100]) -> f32[5] {
  %a = bf16[100]{0} parameter(0)
  %b = f32[100]{0} parameter(1)
  %wide = f32[100]{0} convert(%a)
  %square = f32[100]{0} multiply(%wide, %wide)
  %sum = f32[100]{0} add(%square, %b)
  ROOT %s = f32[5]{0} slice(%sum), slice={[0:5]}
}

%whole (a: bf16[100]) -> bf16[10,10] {
  %a = bf16[100]{0} parameter(0)
  %wide = f32[100]{0} convert(%a)
  %s = f32[5]{0} slice(%wide), slice={[0:5]}
  ROOT %view = bf16[10,10]{1,0} bitcast(%a)
}

ENTRY %main (x: bf16[100], y: f32[100]) -> bf16[10,10] {
  %x = bf16[100]{0} parameter(0)
  %y = f32[100]{0} parameter(1)
  %p = f32[5]{0} fusion(%x, %y), kind=kLoop, calls=%part
  ROOT %w = bf16[10,10]{1,0} fusion(%x), kind=kLoop, calls=%whole
}
"""


def test_a_slice_behind_elementwise_operations_needs_no_more():
  """And a view that is returned needs all of it."""
  counts = hlo_counts.count(BEHIND)
  assert counts.bytes_read == (2 * 5 + 4 * 5) + 200
  assert counts.bytes_written == 20 + 200
