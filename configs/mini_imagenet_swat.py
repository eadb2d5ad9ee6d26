"""Gated-SwinRMT-SWAT on Mini-ImageNet at 224x224: Table 2 of the paper.

  gswinrmt prepare mini_imagenet --help
  python train.py --config=configs/mini_imagenet_swat.py

40 epochs with batches of 128, AdamW with 5 epochs of warm-up and cosine decay,
weight decay 0.05 and label smoothing 0.1. `--help` lists all fields.

To train on another data set with the same splits, give its name:

  python train.py --config=configs/mini_imagenet_swat.py \
    --config.data.name=NAME --workdir=runs/NAME_swat

Table 2 names augmentations without settings. The argument selects a reading:
`torchvision` (the default; torchvision's RandAugment, one batch in five mixed,
peak learning rate 3e-4), `deit` (as in DeiT, every batch mixed) or `plain`
(the flip alone). The last two keep the printed rate of 1e-4.

  python train.py --config=configs/mini_imagenet_swat.py:plain

A smoke test, which trains a tiny model on packaged digits in under a minute:

  python train.py --config=configs/mini_imagenet_swat.py:smoke

Result: not measured.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  config = recipes.mini_imagenet('swat_large')
  return recipes.with_argument(config, arg, table2=True)
