r"""A small model on CIFAR-10, first map 16x16: a recipe of this project.

  python train.py --config=configs/cifar10_small.py

The paper's models see 32x32 images as a first map of 8x8; here it is 16x16.
Gated-SwinRMT-Retention, widths 48 96 192, depths 2 2 4. Windows of 4 divide the
maps of 16x16 and 8x8; the last map, 4x4, is one window. 28 epochs of Muon at
3e-3, one RandAugment operation of torchvision's strength, Random Erasing, EMA.
The argument is the model: `retention` (the default), `rmt` or `swat`. `long`,
after it, is the schedule for a GPU: 90 epochs, with a second RandAugment
operation, more stochastic depth and, except in the last 20 epochs, a quarter of
the batches mixed.

  python train.py --config=configs/cifar10_small.py:swat
  python train.py --config=configs/cifar10_small.py:retention,long

Cost (10 classes, 32x32; multiply-accumulates per image):

  model            parameters    multiply-accumulates
  retention, swat   2,378,426              75,173,760
  rmt               2,035,234              67,309,440

A tiny model, in under a minute, to see that all of it runs:

  python train.py --config=configs/cifar10_small.py:smoke

Result: Retention has 90.48 % validation and 89.20 % test accuracy with the EMA
of its best epoch, the 27th (JPEG-75 copy of CIFAR-10, --config.dtype=float32,
seed 0, JAX 0.10, two CPU cores at 296 s an epoch). A warm restart,

  python train.py --config=configs/cifar10_small.py --config.dtype=float32 \
    --config.init_from=runs/cifar10_small --config.num_epochs=25 \
    --config.seed=1 --workdir=runs/cifar10_small_restart

gives 91.28 and 90.39 %. A second restart from there, on the original pixels,
gives 93.88 and 92.70 %, and a third 94.02 and 93.70 %; its weights ship with
the package as `cifar10_small`.
After 15 of the 28 epochs, validation accuracy (EMA) is 88.46 % for `rmt`,
88.34 % for `retention` and 88.80 % for `swat`.
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `[MODEL][,long][,smoke]`, after the colon."""
  model, rest = recipes.split_model(
      arg, ('retention', 'rmt', 'swat'), default='retention'
  )
  length, _, after = (rest or '').partition(',')
  if length == 'long':
    rest = after or None
  config = recipes.defaults(f'{model}_compact')
  recipes.set_reading(config, 'torchvision')
  config.num_epochs = 28
  config.ema_decay = 0.99
  config.optimizer.name = 'muon'
  config.optimizer.learning_rate = 3e-3
  config.optimizer.warmup_epochs = 2.0

  # Three stages, with maps of 16x16, 8x8 and 4x4.
  config.model.stem_strides = (2, 1, 1, 1)
  config.model.widths = (48, 96, 192)
  config.model.depths = (2, 2, 4)
  config.model.num_heads = (2, 4, 8)
  config.model.mlp_ratios = (3.0, 3.0, 3.0)
  config.model.decay_ranges = (4.0, 4.0, 6.0)
  # Eight blocks train without LayerScale and without the FFN's norm.
  config.model.layer_scale = (0.0, 0.0, 0.0)
  config.model.ffn_norm = False
  config.model.drop_path_rate = 0.05
  if model == 'rmt':
    config.model.full_stages = (3,)
  else:
    config.model.window_size = 4

  # Less augmentation than in that reading: a model of this size underfits.
  config.augment.rand_augment_ops = 1
  config.augment.mix_prob = 0.0
  if length == 'long':  # Three times the epochs, so more regularisation.
    config.num_epochs = 90
    config.optimizer.warmup_epochs = 3.0
    config.model.drop_path_rate = 0.1
    config.augment.rand_augment_ops = 2
    config.augment.mix_prob = 0.25
    config.augment.mix_off_epochs = 20
  return recipes.with_argument(config, rest, words=('long',))
