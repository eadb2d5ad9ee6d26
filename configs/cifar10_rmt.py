"""RMT baseline on CIFAR-10: Table 2 of the paper.

  python train.py --config=configs/cifar10_rmt.py

50 epochs with batches of 128, AdamW with a peak learning rate of 1e-4 (5 epochs
of warm-up, then cosine decay), weight decay 0.05 and label smoothing 0.1.
`--help` lists all fields.

Table 2 names augmentations without settings. The argument selects a reading,
`deit` (the default), `torchvision` or `plain` (crop and flip only):

  python train.py --config=configs/cifar10_rmt.py:plain

A smoke test, which trains a tiny model on packaged digits in under a minute:

  python train.py --config=configs/cifar10_rmt.py:smoke

Result: 51.74 % validation accuracy after 10 of the 50 epochs (JPEG-75 copy of
CIFAR-10, float32, seed 0, two CPU cores, JAX 0.10); all 50 not measured.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  config = recipes.cifar10('rmt_compact')
  return recipes.with_argument(config, arg, table2=True)
