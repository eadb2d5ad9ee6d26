"""Gated-SwinRMT-SWAT on Mini-ImageNet at 224x224: Table 2 of the paper.

  gswinrmt prepare mini_imagenet --help
  python train.py --config=configs/mini_imagenet_swat.py

40 epochs of batches of 128, AdamW with a peak of 1e-4 (5 epochs of warm-up,
cosine) and weight decay 0.05, label smoothing 0.1. `--help` lists all fields.

Any data set of the same shape does, by its name:

  python train.py --config=configs/mini_imagenet_swat.py \
    --config.data.name=NAME --workdir=runs/NAME_swat

Another reading of the table's augmentations, which have no settings there, is
the argument `deit` (the default), `torchvision` or `plain` (crop and flip):

  python train.py --config=configs/mini_imagenet_swat.py:plain

A tiny model for a few seconds on the packaged digits, to see that all of it
runs:

  python train.py --config=configs/mini_imagenet_swat.py:smoke

Result: not measured.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  config = recipes.mini_imagenet('swat_large')
  return recipes.with_argument(config, arg, table2=True)
