"""Gated-SwinRMT-Retention on CIFAR-10: Table 2 of the paper.

  python train.py --config=configs/cifar10_retention.py

A tiny model for a few seconds, to see that all of it runs:

  python train.py --config=configs/cifar10_retention.py:smoke

Result: not measured yet.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is what stands behind the colon."""
  config = recipes.cifar10('retention_compact')
  return recipes.with_argument(config, arg)
