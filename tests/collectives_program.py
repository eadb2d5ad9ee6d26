"""Prints the collectives of a compiled train step on all devices.

  python tests/collectives_program.py

The output is JSON: the result shapes of each kind of collective.
"""

import collections
import json
import re
import types
from unittest import mock

from flax import linen as nn
import jax
import jax.numpy as jnp

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.models import layers
from gswinrmt_jax.train import schedule, trainer

CLASSES, IMAGE = 10, (32, 32, 3)
# Matches `%name = SHAPES all-reduce(...`; SHAPES of several arrays is a tuple.
_EXCHANGE = re.compile(
    r'^\s+(?:ROOT )?%?[\w.\-]+ = (.+?) '
    r'((?:all-|reduce-scatter|collective-)[\w-]*)\(',
    re.MULTILINE,
)
# One stage of two blocks; the windows of the second are shifted.
_FIELDS = {
    'batch_size': 32,
    'ema_decay': 0.9,
    'dtype': 'bfloat16',
    'augment.crop_padding': 4,
    'augment.flip': True,
    'augment.rand_augment_ops': 1,
    'augment.erase_prob': 0.25,
    'model.widths': (8,),
    'model.depths': (2,),
    'model.num_heads': (2,),
    'model.mlp_ratios': (2.0,),
    'model.layer_scale': (0.1,),
    'model.decay_ranges': (4.0,),
    'model.window_size': 4,
    'model.stem': 'patch',
    'model.head': 'proj',  # has the BatchNorm
}


def _uniform(key, a, b, dtype):
  del a, b
  return jax.random.uniform(key, dtype=dtype)


def _exchanged():
  """Compiles a train step; returns the shapes of its collectives, by kind."""
  config = recipes.defaults('retention_compact')
  config.update_from_flattened_dict(_FIELDS)
  config = recipes.resolve(config)
  devices = mesh.Devices()
  data = types.SimpleNamespace(
      devices=devices,
      info=datasets.Info(
          'x', ('',) * CLASSES, (0.5,) * 3, (0.25,) * 3, IMAGE[:2]
      ),
      train=types.SimpleNamespace(image_shape=IMAGE),
  )
  built = trainer.build(
      config,
      recipes.make_model(config, CLASSES, IMAGE),
      data,
      schedule.from_config(config, num_examples=1000),
  )
  batch = {
      name: jax.ShapeDtypeStruct(
          (config.batch_size, *shape), dtype, sharding=devices.split
      )
      for name, shape, dtype in (
          ('image', IMAGE, jnp.uint8),
          ('label', (), jnp.int32),
      )
  }
  with (
      nn.intercept_methods(layers.plain_convolutions),
      # Beta variates take as long to compile as all the rest.
      mock.patch.object(jax.random, 'beta', _uniform),
  ):
    lowered = built.train_step.lower(built.target, batch, built.key)
  found = collections.defaultdict(list)
  for results, opcode in _EXCHANGE.findall(lowered.compile().as_text()):
    found[opcode] += re.findall(r'\w+\[[\d,]*\]', results)
  return found


if __name__ == '__main__':
  print(json.dumps(_exchanged()))
