"""Trains a model: python train.py --config=configs/digits_retention.py."""

import sys

from gswinrmt_jax.commands import train

if __name__ == '__main__':
  sys.exit(train.main())
