"""Reference values of a small RMT, from the authors' released PyTorch code.

`tests/fixtures/rmt_tiny.npz` was computed in float32 on a CPU, each parameter
and BN statistic perturbed. It has the weights by their PyTorch names (`sd/`);
images that are not square with their maps and logits (`b/`), the logits in
float64; and a training step (`train/`) on square ones. Of each map every 7th
element is stored, which covers each channel and position. `decay/` and `angle/`
are the tables of the four published sizes.
"""

import functools
import json
import pathlib
from unittest import mock

import deep_shapes
import jax
import numpy as np

import gswinrmt_jax
from gswinrmt_jax import weights
from gswinrmt_jax.models import factory

EVERY = 7
_FILE = pathlib.Path(__file__).parent / 'fixtures' / 'rmt_tiny.npz'


@functools.cache
def arrays():
  """Returns the file as `{name: array}`."""
  with np.load(_FILE) as file:
    return {name: file[name] for name in file.files}


def state_dict():
  """Returns the weights by their PyTorch names."""
  return {
      name.removeprefix('sd/'): array
      for name, array in arrays().items()
      if name.startswith('sd/')
  }


def fields():
  """Returns the fields that make `rmt_t` this model."""
  config = json.loads(str(arrays()['config_json']))
  full = [not chunked for chunked in config['chunkwise_recurrents']]
  return {
      'widths': config['embed_dims'],
      'depths': config['depths'],
      'num_heads': config['num_heads'],
      'mlp_ratios': config['mlp_ratios'],
      'decay_ranges': config['heads_ranges'],
      'full_stages': [
          stage + 1 for stage, is_full in enumerate(full) if is_full
      ],
      'projection': config['projection'],
  }


def model(**overrides):
  """Returns the model, without stochastic depth."""
  return gswinrmt_jax.create_model(
      'rmt_t', num_classes=10, drop_path_rate=0.0, **fields() | overrides
  )


def zeros(model):
  """Returns the state dict of a deep model whose weights are 0."""
  shapes = deep_shapes.variable_shapes(model, (32, 32, 3))
  variables = jax.tree.map(
      lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), shapes
  )
  with mock.patch.object(factory, 'variable_shapes', return_value=shapes):
    return weights.to_torch_state_dict(variables, model)
