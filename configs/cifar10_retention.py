"""Gated-SwinRMT-Retention on CIFAR-10: Table 2 of the paper.

  python train.py --config=configs/cifar10_retention.py

50 epochs with batches of 128, AdamW with 5 epochs of warm-up and cosine decay,
weight decay 0.05 and label smoothing 0.1. `--help` lists all fields.

The argument selects a reading of Table 2's augmentations (docs/decisions.md):
`torchvision` (the default), `deit` or `plain`; or a tiny model on packaged
digits, `smoke`.

Result: 86.40 % validation and 84.93 % test accuracy after all 50 epochs (paper:
86.54 and 86.46 %; float32, seed 0, JAX 0.10, one of two CPU cores while the
other had other work, 288 s per epoch). On a JPEG copy of CIFAR-10: 84.74 and
83.43 %.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  config = recipes.cifar10('retention_compact')
  return recipes.with_argument(config, arg, table2=True)
