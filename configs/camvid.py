"""Small segmenters on CamVid: this project's own recipe, for two CPU cores.

  gswinrmt prepare segmentation camvid --images DIR --labels DIR \
    --classes FILE --void 11
  python train.py --config=configs/camvid.py:rmt

CamVid has 367 training images of streets with 480 x 360 pixels and 11 classes,
for non-commercial use. Images are halved in size and cropped to 160 x 224
(height x width). 60 epochs with batches of 8, AdamW with a peak learning rate
of 1e-3. The backbone has widths 32 64 96 128 and depths 1 1 3 1, the Semantic
FPN head 64 channels; nothing is pretrained.

The argument is the backbone: `rmt` (the default), `retention`, `swat`, or
`conv`, which is RMT without attention. Its windows have one token, so every
attention weight is 1, and only the convolutions mix neighbouring tokens.

A smoke test, which trains a tiny model in under a minute:

  python train.py --config=configs/camvid.py:smoke

Result: docs/segmentation.md, "CamVid".
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `[MODEL][,smoke]`, after the colon."""
  model, rest = recipes.split_model(
      arg, ('rmt', 'retention', 'swat', 'conv'), default='rmt'
  )
  family = 'rmt' if model == 'conv' else model
  config = recipes.segmentation(f'{family}_compact', 'fpn')
  config.dtype = 'float32'
  config.batch_size = 8
  config.eval_batch_size = 8
  config.num_epochs = 60
  config.eval_every_epochs = 4
  config.log_every_steps = 20

  config.model.widths = (32, 64, 96, 128)
  config.model.depths = (1, 1, 3, 1)
  config.model.num_heads = (2, 4, 6, 8)
  config.model.mlp_ratios = (3.0, 3.0, 3.0, 3.0)
  config.model.drop_path_rate = 0.0
  if model == 'conv':
    config.model.full_stages = ()
    config.model.window_size = 1
  config.segmenter.channels = 64
  config.segmenter.neck_channels = 64

  config.data.name = 'camvid'
  config.data.fit_within = (240, 180)
  config.data.crop_size = (160, 224)
  config.augment.resize = (0.75, 1.5)
  config.augment.photometric = True

  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_epochs = 2.0
  return recipes.with_argument(config, rest)
