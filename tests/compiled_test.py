"""Compiling the step for a GPU that is not here, and what it then does."""

import functools

import jax
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.benchmark import compiled, report, targets
from gswinrmt_jax.errors import UserError


def _missing():
  try:
    compiled.check_installed()
  except UserError as error:
    return str(error)
  return ''


needs_plugin = pytest.mark.skipif(bool(_missing()), reason=_missing())


@functools.cache
def _counts(heads=(2, 4)):
  config = recipes.cifar10('retention_compact')
  config.batch_size = 8
  config.model.update(
      widths=(16, 32),
      depths=(1, 1),
      num_heads=heads,
      mlp_ratios=(2.0, 2.0),
      layer_scale=(1e-2, 1e-2),
      decay_ranges=(4.0, 4.0),
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
