r"""A classifier of the images in a folder, with settings that suit them.

  python train.py --config=configs/folder.py --config.data.name=DIR
  python train.py --config=configs/folder.py --config.data.name=DIR \
    --config.init_from=cifar10_small

DIR has a folder of images for each class, or train/ and any of val/ and test/
with such folders (docs/data.md). Without `config.init_from`, a Gated-SwinRMT-
Retention of three stages learns from scratch: that of `cifar10_small`, with
Muon and light augmentation. With it, the weights are fine-tuned: model, image
size and normalisation are then theirs, the learning rate is a third, and a
third of the images are seen. `--config.optimizer.freeze=backbone` trains
only the head, at ten times that rate. In each case a moving average with a
warm-up is kept.

`adapt` sets, from the n training images,

  batch      the largest power of two up to n / 8, from 16 to 128
  epochs     so many that 30,000 images are seen, at least 30 (fine-tuning:
             10,000, at least 10); the first twentieth warms up
  rate       3e-3 sqrt(batch / 128), the square-root scaling rule of Adam
             (Malladi et al., arXiv 2205.10287)
  size       the median shorter side, as a multiple of 32 from 32 to 128; if not
             all images are square, random crops are trained on

and prints them. Every field can be overridden, as in other recipes. The
argument `smoke` trains a tiny model on the packaged digits.

Result: docs/training.md, "From a folder to a classifier".
"""

from collections.abc import Collection
import math
from typing import Any

import ml_collections
import numpy as np

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import counted


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe before it is adapted; `arg` is None or 'smoke'."""
  config = recipes.defaults('retention_compact')
  recipes.set_reading(config, 'torchvision')
  config.dtype = 'float32'  # faster on a CPU
  config.data.name = ''
  config.ema_decay = 0.99
  config.ema_warmup = True
  config.optimizer.name = 'muon'
  config.optimizer.learning_rate = 3e-3

  # The model of cifar10_small: maps of 16x16, 8x8 and 4x4.
  config.model.stem_strides = (2, 1, 1, 1)
  config.model.widths = (48, 96, 192)
  config.model.depths = (2, 2, 4)
  config.model.num_heads = (2, 4, 8)
  config.model.mlp_ratios = (3.0, 3.0, 3.0)
  config.model.decay_ranges = (4.0, 4.0, 6.0)
  config.model.layer_scale = (0.0, 0.0, 0.0)
  config.model.ffn_norm = False
  config.model.drop_path_rate = 0.05
  config.model.window_size = 4
  config.augment.rand_augment_ops = 1
  config.augment.mix_prob = 0.0
  return recipes.with_argument(config, arg)


def adapt(
    config: ml_collections.ConfigDict, given: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
  """Returns the fields that fit data and weights, and lines that say so.

  Args:
    config: The recipe with the overrides of its user, which are applied again
      to the result.
    given: Fields with an override, such as 'optimizer.learning_rate'.

  Raises:
    UserError: If there is no such data set, or no such weights, or their
      normalisation has no name.
  """
  # Imported here, so that `--help` need not wait for JAX.
  from gswinrmt_jax.weights import load

  data, default = config.data, get_config()
  if not data.name:  # `--help` without data
    return {}, []
  cifar10.prepare_if_missing(data.name, data.dir)
  own, fields = datasets.own_splits(data.name, data.dir), {}
  splits = {'train': data.train_split, 'val': data.val_split}
  train, val = (
      datasets.open_source(
          data.name, own[split] if name == 'auto' else name, data.dir
      )
      for split, name in splits.items()
  )
  images = len(train)
  sizes = [train[row][0].size for row in range(0, images, -(-images // 100))]

  batch_size, num_epochs = config.batch_size, config.num_epochs
  if 'batch_size' not in given:
    batch_size = 2 ** int(math.log2(max(images / 8, 16)))
    batch_size = min(batch_size, 128)
  seen, least = (10_000, 10) if config.init_from else (30_000, 30)
  if 'num_epochs' not in given:
    fitting = max(least, math.ceil(seen / images))
    num_epochs = 0 if config.num_steps else fitting
  epochs = num_epochs or math.ceil(config.num_steps * batch_size / images)
  warmup, rate = config.optimizer.warmup_epochs, config.optimizer.learning_rate
  if 'optimizer.warmup_epochs' not in given:
    warmup = 0.0 if config.optimizer.warmup_steps else round(epochs / 20, 2)
  rising = warmup or config.optimizer.warmup_steps * batch_size / images
  if 'optimizer.learning_rate' not in given:
    rate *= math.sqrt(batch_size / 128)
    if config.init_from:
      rate *= 10 / 3 if config.optimizer.freeze == 'backbone' else 1 / 3
  median = int(np.median([min(size) for size in sizes]))
  card = load.read_card(config.init_from) if config.init_from else None
  usual = min(max(32, 32 * round(median / 32)), 128)
  side = data.image_size or (min(card.image_size) if card else usual)
  as_stored = 'data.image_size' in given and not data.image_size
  if as_stored:
    side = median
  size_text = 'images as stored' if as_stored else f'image size {side}'
  if card:
    named = datasets.normalization_of(card.mean, card.std)
    if not named and 'data.normalization' not in given:
      raise UserError(
          f'{config.init_from} normalises by mean {card.mean} and std '
          f'{card.std}, for which config.data.normalization has no name: set '
          "it, such as to imagenet ('' is the data's own)"
      )
    fields |= {f'model.{name}': value for name, value in card.fields.items()}
    fields['model.name'] = card.name
    fields.pop('model.feature_norm', None)  # of segmenters and detectors
    if named:
      fields['data.normalization'] = named
    taken = named and 'data.normalization' not in given
    what = 'model and normalisation' if taken else 'model'
    said = f'{what} of {config.init_from}, {size_text}'
  else:
    said = f'{size_text}, for a median shorter side of {median} pixels'
    if side > 64:  # a first map of at most 32x32
      fields['model.stem_strides'] = (2, 1, 2, 1)
  fields |= {
      'data.image_size': side,
      'augment.crop_padding': side // 8,
      'batch_size': batch_size,
      # A batch is padded to its size.
      'eval_batch_size': min(len(val), default.eval_batch_size),
      'num_epochs': num_epochs,
      'eval_every_epochs': max(1, epochs // 50),
      'optimizer.learning_rate': float(f'{rate:.2g}'),
      'optimizer.warmup_epochs': warmup,
  }
  crops = any(width != height for width, height in sizes) and not as_stored
  if 'data.train_crop' in given:
    crops = data.train_crop == 'random_resized'
  if crops:
    fields |= {
        'data.train_crop': 'random_resized',
        'data.crop_scale': (0.35, 1.0),
        'data.eval_crop': 1.0,
        'data.storage': 'decode',
        'augment.crop_padding': 0,
    }
    if 'data.train_crop' not in given and 'data.eval_crop' not in given:
      said += (
          '; random crops in training and central squares in evaluation, as '
          'not all images are square'
      )
  return fields, [
      said,
      f'{counted(epochs, "epoch")} of {images:,} images in batches of '
      f'{batch_size}, with warm-up over the first {rising:g}',
      f'learning rate {rate:.2g}',
  ]
