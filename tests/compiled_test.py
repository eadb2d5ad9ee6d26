"""Compiling the step for a GPU that is not here, and what it then does."""

import functools

import jax
import jax.numpy as jnp
import pytest

from gswinrmt_jax import pallas, recipes
from gswinrmt_jax.benchmark import compiled, report, targets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.ops import rotary


def _missing():
  try:
    compiled.check_installed()
  except UserError as error:
    return str(error)
  return ''


# The tests' own settings leave the optimisation out.
_NO_SPILLING = {
    'xla_backend_optimization_level': 3,
    'xla_gpu_fail_ptx_compilation_on_register_spilling': True,
}
needs_plugin = pytest.mark.skipif(bool(_missing()), reason=_missing())


@functools.cache
def _counts(heads=(2, 4), **fields):
  config = recipes.cifar10('retention_compact')
  config.batch_size = 8
  config.model.update(
      widths=(16, 32),
      depths=(1, 1),
      num_heads=heads,
      mlp_ratios=(2.0, 2.0),
      layer_scale=(1e-2, 1e-2),
      decay_ranges=(4.0, 4.0),
      **fields,
  )
  return report.count_step(
      config, image_size=16, num_classes=10, augmented=False, target='h200'
  )


def test_an_old_jax_is_told(monkeypatch):
  monkeypatch.setattr(jax, '__version_info__', (0, 10, 2))
  with pytest.raises(UserError, match=r'needs jax 0.11 or later .*pip install'):
    compiled.check_installed()


def test_a_missing_plugin_is_told(monkeypatch):
  monkeypatch.setattr(jax, '__version_info__', (0, 12, 0))
  monkeypatch.setattr(compiled.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(
      UserError, match='pip install --no-deps jax-cuda12-plugin'
  ):
    compiled.check_installed()


def test_the_target_is_one_message():
  text = targets.TARGETS['h200']
  assert text.count('{') == text.count('}')
  assert 'core_count: 132' in text and 'major: 9' in text


@needs_plugin
def test_counts_of_a_tiny_model():
  """Two blocks, a stem and a convolution between; JAX 0.12.0.1 gives 248."""
  found = _counts()
  assert found['kernels'] <= 256
  # Depthwise convolutions of small maps are none of the library's.
  assert found['kernels_by_kind']['cudnn'] <= 14
  assert found['bytes'] <= 2.4 * found['ideal_bytes']
  assert found['loops_of_unknown_length'] == 0
  assert found['collectives'] == {}
  assert sum(found['kernels_by_kind'].values()) == found['kernels']


@needs_plugin
@pytest.mark.filterwarnings('ignore:The Pallas Triton backend')
def test_kernels_of_our_own_are_counted_and_read_less():
  kernels = {'attention_impl': 'pallas', 'ffn_impl': 'pallas'}
  plain, found = _counts(), _counts(heads=(1, 2), **kernels)
  assert 'pallas' not in plain['kernels_by_kind']
  # Five in each of two blocks.
  assert found['kernels_by_kind']['pallas'] == 10
  assert found['kernels'] < plain['kernels']
  assert found['bytes'] < plain['bytes']


@needs_plugin
@pytest.mark.filterwarnings('ignore:The Pallas Triton backend')
@pytest.mark.parametrize(('extent', 'width'), [(56, 128), (7, 1024)])
def test_kernels_of_our_own_fit_into_registers(extent, width):
  """Those of the large models' first and last stage, for an H200."""
  with compiled.tracing_for_target('h200') as device:

    def shape(*shape, dtype=jnp.bfloat16):
      return jax.ShapeDtypeStruct(shape, dtype, sharding=device)

    def backward(function, *inputs):
      def run(inputs, cotangent):
        return jax.vjp(function, *inputs)[1](cotangent)

      lowered = (
          jax.jit(run)
          .trace(inputs, inputs[0])
          .lower(lowering_platforms=('cuda',))
      )
      lowered.compile(_NO_SPILLING)

    numbers = functools.partial(shape, dtype=jnp.float32)
    hidden = 3 * width
    backward(
        pallas.gelu_conv_norm,
        shape(128, extent, extent, hidden),
        numbers(3, 3, 1, hidden),
        *[numbers(hidden)] * 3,
    )
    rotations = {
        'softmax': rotary.interleaved(32, min(extent, 14)),
        'sigmoid': rotary.split_half(32),
    }
    for name, rotation in rotations.items():
      attend = functools.partial(
          pallas.FORMS[name], window=14, shift=7, rotation=rotation
      )
      maps = [shape(128, extent, extent, width // 32, 32)] * 3
      backward(attend, *maps, numbers(2, width // 32))
