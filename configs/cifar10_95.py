"""A model for 95 % on CIFAR-10, first map 16x16: a recipe of our own.

  python train.py --config=configs/cifar10_95.py

As configs/cifar10_small.py with widths 96 192 384, depths 2 4 6 and 100 epochs,
of which the last 15 are without mixing; for a GPU. The argument is the model:
`retention` (the default), `rmt` or `swat`.

  python train.py --config=configs/cifar10_95.py:swat

Cost (10 classes, 32x32; multiply-accumulates of the products of one image; a
training step is three forward passes, of two operations each):

  model            parameters    multiply-accumulates    all 100 epochs
  retention, swat  13,878,022             408,874,752    11.0 PFLOP
  rmt              11,763,514             355,987,200     9.6 PFLOP

A tiny model for a few seconds, to see that all of it runs:

  python train.py --config=configs/cifar10_95.py:smoke

Result: not measured.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `[MODEL][,smoke]`, after the colon."""
  return recipes.small_images(
      arg,
      widths=(96, 192, 384),
      depths=(2, 4, 6),
      num_heads=(3, 6, 12),
      num_epochs=100,
      mix_off_epochs=15,
  )
