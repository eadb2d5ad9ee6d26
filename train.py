"""Trains a model: python train.py --config=configs/digits_retention.py."""

from gswinrmt_jax import allocator
from gswinrmt_jax.commands import guard, train

if __name__ == '__main__':
  allocator.restart()
  guard.exits(train.main)
