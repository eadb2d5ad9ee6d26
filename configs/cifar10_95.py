"""A model for 95 % on CIFAR-10, first map 16x16: this project's own recipe.

  python train.py --config=configs/cifar10_95.py

100 epochs, for a GPU: AdamW with a peak learning rate of 1e-3, RandAugment and
Random Erasing as in torchvision, an EMA, and half of the batches mixed, except
in the last 15 epochs. Widths 96 192 384, depths 2 4 6; the gated models have
windows of 4. The argument is the model: `retention` (the default), `rmt` or
`swat`.

  python train.py --config=configs/cifar10_95.py:swat

Cost (10 classes, 32x32; multiply-accumulates of matmuls and convolutions for
one image; a training step counts as three forward passes, with two operations
per multiply-accumulate):

  model            parameters    multiply-accumulates    all 100 epochs
  retention, swat  13,878,022             408,874,752    11.0 PFLOP
  rmt              11,763,514             355,987,200     9.6 PFLOP

Its speed on a GPU was not measured; `benchmarks/run_on_gpu.sh cifar10_95`
trains it on one.

A smoke test, which trains a tiny model on packaged digits in under a minute:

  python train.py --config=configs/cifar10_95.py:smoke

Result: not measured. After the first and the second epoch, validation accuracy
is 43.24 % and 52.10 % (retention, seed 0, JPEG-75 copy of CIFAR-10, float32 on
two CPU cores, JAX 0.10; results/jpeg75/cifar10_95.json).
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `[MODEL][,smoke]`, after the colon."""
  model, rest = recipes.split_model(
      arg, ('retention', 'rmt', 'swat'), default='retention'
  )
  config = recipes.defaults(f'{model}_compact')
  recipes.set_reading(config, 'torchvision')
  config.num_epochs = 100
  config.ema_decay = 0.998
  config.optimizer.learning_rate = 1e-3

  # Three stages, with maps of 16x16, 8x8 and 4x4.
  config.model.stem_strides = (2, 1, 1, 1)
  config.model.widths = (96, 192, 384)
  config.model.depths = (2, 4, 6)
  config.model.num_heads = (3, 6, 12)
  config.model.mlp_ratios = (3.0, 3.0, 3.0)
  config.model.decay_ranges = (4.0, 4.0, 6.0)
  if model == 'rmt':
    config.model.layer_scale = (0.0, 0.0, 0.0)
    config.model.full_stages = (3,)
  else:
    config.model.layer_scale = (1e-2, 1e-2, 1e-2)
    config.model.window_size = 4

  config.augment.mix_prob = 0.5
  config.augment.mix_off_epochs = 15
  return recipes.with_argument(config, rest)
