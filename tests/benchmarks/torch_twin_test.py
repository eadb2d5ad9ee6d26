"""Tests the PyTorch twin's logits, loss, gradients and running statistics."""

import dataclasses

import jax
import jax.numpy as jnp
import jax_programs
import numpy as np
import pytest

import gswinrmt_jax

torch = pytest.importorskip('torch', reason='PyTorch is not installed')

SMALL = {
    'widths': (16, 32),
    'depths': (1, 2),
    'num_heads': (1, 2),
    'mlp_ratios': (2.0, 3.0),
    'decay_ranges': (4.0, 6.0),
}
MODELS = {
    'retention_compact': {'layer_scale': (0.1, 0.1), 'window_size': 5},
    'rmt_t': {'layer_scale': (0.0, 0.0), 'full_stages': (2,)},
}


def _model(name, **changes):
  return gswinrmt_jax.create_model(
      name, num_classes=7, **SMALL, **MODELS[name], **changes
  )


@pytest.mark.parametrize('name', MODELS)
def test_gradients_are_equal(name):
  import torch_programs
  import torch_twin

  model = _model(name, drop_path_rate=0.0)
  twin = torch_programs.checked_twin(model).train()
  values = jax_programs.random_variables(model, (72, 56, 3))
  image = np.random.default_rng(3).normal(size=(2, 72, 56, 3)).astype('f4')

  def loss(params):
    both = {**values, 'params': params}
    logits, updated = model.apply(
        both, jnp.asarray(image), train=True, mutable='batch_stats'
    )
    return jnp.square(logits).sum(), updated

  compute = jax.jit(jax.grad(loss, has_aux=True))
  grads, updated = compute(values['params'])
  torch_twin.load(twin, values)
  twin(torch.from_numpy(image).permute(0, 3, 1, 2)).square().sum().backward()
  expected = torch_twin.Twin(model.arch, 7)
  torch_twin.load(expected, {'params': grads, **updated})
  found = {n: p.grad for n, p in twin.named_parameters() if p.requires_grad}
  largest = max(float(grad.abs().max()) for grad in found.values())
  for where, gradient in expected.named_parameters():
    if where in found:
      gradient = gradient.detach()
      scale = float(gradient.abs().max()) + 1e-3 * largest
      error = float((gradient - found[where]).abs().max()) / scale
      assert error < 1e-3, where
  for where, statistic in expected.named_buffers():
    if 'running_' in where:
      np.testing.assert_allclose(
          twin.get_buffer(where), statistic, rtol=1e-3, atol=1e-4
      )


def test_another_model_is_not_timed(monkeypatch):
  import torch_programs
  import torch_twin

  model = _model('rmt_t')
  load = torch_twin.load

  def wrong(twin, values):
    load(twin, values)
    with torch.no_grad():
      twin.head.bias += 0.1

  monkeypatch.setattr(torch_twin, 'load', wrong)
  with pytest.raises(ValueError, match='its logits differ'):
    torch_programs.checked_twin(model)
  swat = gswinrmt_jax.create_model('swat_compact', num_classes=7)
  with pytest.raises(ValueError, match='RMT and Gated-SwinRMT-Retention only'):
    torch_twin.Twin(swat.arch, 7)
  unnamed = dataclasses.replace(model.arch, swiglu=True)
  with pytest.raises(ValueError, match='only'):
    torch_twin.Twin(unnamed, 7)
