"""RMT baseline on CIFAR-10: Table 2 of the paper.

  python train.py --config=configs/cifar10_rmt.py

50 epochs with batches of 128, AdamW with 5 epochs of warm-up and cosine decay,
weight decay 0.05 and label smoothing 0.1. `--help` lists all fields.

The argument selects a reading of Table 2's augmentations (docs/decisions.md):
`torchvision` (the default), `deit` or `plain`; or a tiny model on packaged
digits, `smoke`.

Result: 86.74 % validation and 85.57 % test accuracy after all 50 epochs (paper:
85.98 and 85.90 %; original pixels, float32, seed 0, JAX 0.10, two CPU cores, 90
s per epoch). On a JPEG copy of CIFAR-10: 84.90 and 83.93 %.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  config = recipes.cifar10('rmt_compact')
  return recipes.with_argument(config, arg, table2=True)
