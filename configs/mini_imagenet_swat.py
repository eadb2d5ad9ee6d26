"""Gated-SwinRMT-SWAT on Mini-ImageNet at 224x224: Table 2 of the paper.

  gswinrmt prepare mini_imagenet --images DIR  # docs/data.md
  python train.py --config=configs/mini_imagenet_swat.py

40 epochs with batches of 128, AdamW with 5 epochs of warm-up and cosine decay,
weight decay 0.05 and label smoothing 0.1. `--help` lists all fields.

The argument selects a reading of Table 2's augmentations (docs/decisions.md):
`torchvision` (the default), `deit` or `plain`; or a tiny model on packaged
digits, `smoke`.

Result: not measured.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  config = recipes.mini_imagenet('swat_large')
  return recipes.with_argument(config, arg, table2=True)
