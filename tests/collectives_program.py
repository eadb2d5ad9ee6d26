"""Prints the collectives of a compiled train step on all devices.

  python tests/collectives_program.py CASE [CASE ...]

The output is JSON: for each case of `CASES`, the result shapes of each kind of
collective.
"""

import collections
import dataclasses
import functools
import json
import re
import sys

from flax import linen as nn
import jax
import jax.numpy as jnp

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.models import factory, layers
from gswinrmt_jax.train import losses, optimizer, train_state, train_step

CLASSES, IMAGE, BATCH = 10, (32, 32, 3), 32
# Matches `%name = SHAPES all-reduce(...`; SHAPES of several arrays is a tuple.
_EXCHANGE = re.compile(
    r'^\s+(?:ROOT )?%?[\w.\-]+ = (.+?) '
    r'((?:all-|reduce-scatter|collective-)[\w-]*)\(',
    re.MULTILINE,
)
_STAGES = {
    'widths': (8, 16),
    'depths': (2, 1),
    'num_heads': (1, 2),
    'mlp_ratios': (2.0, 2.0),
    'layer_scale': (0.1, 0.1),
    'decay_ranges': (4.0, 4.0),
}
_PLAIN = augment_lib.Augment(
    crop_padding=0,
    flip=False,
    rand_augment_set='timm',
    rand_augment_ops=0,
    rand_augment_magnitude=9.0,
    rand_augment_std=0.5,
    rand_augment_prob=0.5,
    erase_prob=0.0,
    erase_area=(0.02, 1 / 3),
    erase_aspect=(0.3, 1 / 0.3),
    erase_fill='noise',
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    mix_prob=1.0,
    label_smoothing=0.1,
    num_classes=CLASSES,
    mean=(0.5,) * 3,
    std=(0.25,) * 3,
)
_FULL = dataclasses.replace(
    _PLAIN, crop_padding=4, flip=True, rand_augment_ops=1, erase_prob=0.25
)
_UNMIXED = dataclasses.replace(_PLAIN, mixup_alpha=0.0, cutmix_alpha=0.0)


def _exchanged(model, settings, *, tokens=False):
  """Compiles a train step; returns the shapes of its collectives, by kind."""
  here = mesh.Devices()
  own = recipes.defaults('retention_compact').optimizer
  tx = optimizer.from_config(own, lambda step: 1e-3)

  def augmentation(key, batch, step):
    del step
    image, targets = augment_lib.augment(
        key, batch['image'], batch['label'], settings
    )
    if not tokens:
      return image, targets
    token_targets = jnp.tile(targets[:, None, None], (1, 4, 4, 1))
    return image, (targets, token_targets)

  loss = losses.class_loss
  if tokens:
    loss = functools.partial(losses.token_label_loss, weight=0.5)
  shapes = jax.eval_shape(
      lambda: train_state.create(model, tx, jax.random.key(0), IMAGE, ema=True)
  )
  update = train_step.make_train_step(
      model, tx, augmentation, loss, ema_decay=0.9
  )
  batch = {
      name: jax.ShapeDtypeStruct((BATCH, *shape), dtype, sharding=here.split)
      for name, shape, dtype in (
          ('image', IMAGE, jnp.uint8),
          ('label', (), jnp.int32),
      )
  }
  key = jax.eval_shape(lambda: jax.random.key(0))
  step = jax.jit(update, donate_argnums=0, out_shardings=here.replicated)
  with nn.intercept_methods(layers.plain_convolutions):
    lowered = step.lower(here.target(shapes), batch, key)
  found = collections.defaultdict(list)
  text = lowered.compile().as_text()
  for results, opcode in _EXCHANGE.findall(text):
    found[opcode] += re.findall(r'\w+\[[\d,]*\]', results)
  return found


def _model(name, **fields):
  return factory.create_model(name, num_classes=CLASSES, **_STAGES | fields)


def _windows():
  return _exchanged(
      _model('retention_compact', window_size=4, dtype='bfloat16'), _FULL
  )


def _sigmoid():
  return _exchanged(_model('swat_compact', window_size=4), _PLAIN)


def _tokens():
  model = _model('rmt_compact', full_stages=(2,), head='proj', dense_head=True)
  return _exchanged(model, _UNMIXED, tokens=True)


CASES = {
    'windows': _windows,
    'sigmoid': _sigmoid,
    'tokens': _tokens,
}


if __name__ == '__main__':
  print(json.dumps({name: CASES[name]() for name in sys.argv[1:]}))
