r"""Small RetinaNets on blood cells: this project's recipe, for two CPU cores.

  printf '%s\n' RBC WBC Platelets > classes.txt
  gswinrmt prepare detection bccd --images BCCD/JPEGImages \
    --boxes BCCD/Annotations --val BCCD/ImageSets/Main/val.txt \
    --test BCCD/ImageSets/Main/test.txt --classes classes.txt
  python train.py --config=configs/bccd.py:rmt

BCCD (github.com/Shenggan/BCCD_Dataset, MIT licence) has 364 microscope images
of 640 x 480 pixels, 205 of them for training, with boxes of red and white blood
cells and of platelets, 13 an image. Images are resized to 213 x 160 pixels, and
flipped along both axes. 24 epochs with batches of 8, AdamW with a peak learning
rate of 1e-3. The backbone has widths 32 64 96 128 and depths 1 1 3 1, the
pyramid and the towers 64 channels; nothing is pretrained. Cells are 10 to 80
pixels wide, so the smallest anchors have 12.

The argument is the backbone: `rmt` (the default), `retention` or `swat`.

A smoke test, which trains a tiny model in a minute:

  python train.py --config=configs/bccd.py:smoke

Result: docs/detection.md, "Blood cells".
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `[MODEL][,smoke]`, after the colon."""
  model, rest = recipes.split_model(
      arg, ('rmt', 'retention', 'swat'), default='rmt'
  )
  config = recipes.detection(f'{model}_compact', 'retina')
  config.dtype = 'float32'
  config.batch_size = 8
  config.eval_batch_size = 8
  config.num_epochs = 24
  config.eval_every_epochs = 4
  config.log_every_steps = 20

  config.model.widths = (32, 64, 96, 128)
  config.model.depths = (1, 1, 3, 1)
  config.model.num_heads = (2, 4, 6, 8)
  config.model.mlp_ratios = (3.0, 3.0, 3.0, 3.0)
  config.model.drop_path_rate = 0.0
  config.detector.channels = 64
  config.detector.tower_channels = 64
  config.detector.tower_depth = 2
  config.detector.anchor_scale = 1.5

  config.data.name = 'bccd'
  config.data.fit_within = (216, 160)
  config.augment.flip_vertical = True

  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_epochs = 0.0
  config.optimizer.warmup_steps = 100
  return recipes.with_argument(config, rest)
