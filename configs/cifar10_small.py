"""A small model on CIFAR-10, first map 16x16: a recipe of our own.

  python train.py --config=configs/cifar10_small.py

The paper's models see 32x32 images as a first map of 8x8; every published
result above 95 % has 16x16 or more. Gated-SwinRMT-Retention, widths 48 96 192,
depths 2 2 4. Windows of 4 divide the maps of 16x16 and 8x8; the last map, 4x4,
is one window. RandAugment as torchvision's, half of the batches mixed but for
the last 8 epochs, EMA, AdamW 1e-3, 50 epochs. The argument is the model:
`retention` (the default), `rmt` or `swat`.

  python train.py --config=configs/cifar10_small.py:swat

Cost (10 classes, 32x32; multiply-accumulates of the products of one image):

  model            parameters    multiply-accumulates
  retention, swat   2,386,874              75,173,760
  rmt               2,041,570              67,309,440

A tiny model for a few seconds, to see that all of it runs:

  python train.py --config=configs/cifar10_small.py:smoke

Result: not measured.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `[MODEL][,smoke]`, after the colon."""
  return recipes.small_images(
      arg,
      widths=(48, 96, 192),
      depths=(2, 2, 4),
      num_heads=(2, 4, 8),
  )
