"""Checks that the PyTorch twin equals the model, each time before timing it."""

import dataclasses

import jax
import jax.numpy as jnp
import jax_programs
import numpy as np
import optax
import torch
from torch.nn import functional
import torch_twin

from gswinrmt_jax.models.backbone import Backbone

# This size involves windows, shifts and odd extents.
_IMAGE = (72, 56, 3)
_BATCH = 2
_TOLERANCE = 2e-4  # relative to the largest logit, and to the loss


def checked_twin(model: Backbone) -> torch_twin.Twin:
  """Returns a twin with random weights that was checked to equal the model.

  Logits and loss are compared in float32 on the CPU, with running statistics
  and then with those of the batch, without stochastic depth.

  Raises:
    ValueError: If logits or loss differ.
  """
  arch = dataclasses.replace(model.arch, drop_path_rate=0.0)
  model = model.clone(arch=arch, dtype=jnp.dtype('float32'))
  twin = torch_twin.Twin(arch, model.num_classes)
  values = jax_programs.random_variables(model, _IMAGE)
  torch_twin.load(twin, values)
  rng = np.random.default_rng(1)
  image = rng.standard_normal((_BATCH, *_IMAGE), np.float32)
  target = rng.dirichlet(np.ones(model.num_classes), _BATCH).astype('float32')

  expected = {}
  for train in (False, True):
    logits = _flax_logits(model, values, image, train)
    loss = optax.softmax_cross_entropy(logits, target).mean()
    expected[train] = (np.asarray(logits), float(loss))
  for train, (logits, loss) in expected.items():
    twin.train(train)
    with torch.no_grad():
      found = twin(torch.from_numpy(image).permute(0, 3, 1, 2))
      found_loss = functional.cross_entropy(found, torch.from_numpy(target))
    _compare('logits', found.numpy(), logits)
    _compare('loss', float(found_loss), loss)
  return twin


def _flax_logits(model, values, image, train):
  def apply(values, image):
    result = model.apply(values, image, train=train, mutable=['batch_stats'])
    return result[0]

  compiled = (
      jax.jit(apply).lower(values, image)
      # The program runs once, so optimising it takes longer than it saves.
      .compile(compiler_options={'xla_backend_optimization_level': 0})
  )
  return compiled(values, image)


def _compare(name, found, expected):
  error = np.abs(found - expected).max() / np.abs(expected).max()
  if not error <= _TOLERANCE:
    raise ValueError(
        f'the twin is another model: its {name} differ by {error:.1e}'
    )
