"""Gated-SwinRMT-SWAT on CIFAR-10: Table 2 of the paper.

  python train.py --config=configs/cifar10_swat.py

50 epochs with batches of 128, AdamW with 5 epochs of warm-up and cosine decay,
weight decay 0.05 and label smoothing 0.1. `--help` lists all fields.

The argument selects a reading of Table 2's augmentations (docs/decisions.md):
`torchvision` (the default), `deit` or `plain`; or a tiny model on packaged
digits, `smoke`.

Result: 86.02 % validation and 84.77 % test accuracy after 50 epochs (paper:
86.76 and 86.39 %; original pixels, float32, seed 0, JAX 0.10, one or two CPU
cores). On a JPEG-75 copy of CIFAR-10, 84.12 and 82.91 % (one core, 188 s per
epoch).
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  config = recipes.cifar10('swat_compact')
  return recipes.with_argument(config, arg, table2=True)
