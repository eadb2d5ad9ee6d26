"""A model whose kernels compute something else is not timed."""

import pytest

from gswinrmt_jax import pallas
from gswinrmt_jax.benchmark import kernel_agreement
from gswinrmt_jax.models import factory


@pytest.fixture(name='model')
def _model(monkeypatch):
  monkeypatch.setattr(pallas, 'runs_here', lambda: True)  # interpreted
  return factory.create_model(
      'retention_compact',
      num_classes=3,
      widths=(32,),
      depths=(2,),
      num_heads=(2,),
      mlp_ratios=(2.0,),
      layer_scale=(0.5,),
      decay_ranges=(4.0,),
      window_size=4,
      attention_impl='pallas',
      ffn_impl='pallas',
  )


def test_the_kernels_agree(model):
  kernel_agreement.check(model)


def test_other_kernels_are_told(model, monkeypatch):
  right = pallas.gelu_conv_norm
  wrong = lambda z, *rest: right(z, *rest) + 1e-2 * z  # noqa: E731
  monkeypatch.setattr(pallas, 'gelu_conv_norm', wrong)
  with pytest.raises(
      ValueError, match=r'compute another model: .* in float32: error'
  ):
    kernel_agreement.check(model)
