"""RMT-T, S, B or L with RetinaNet or Mask R-CNN on COCO, 12 epochs as released.

  gswinrmt prepare detection coco --images DIR \
    --boxes instances_train2017.json --val instances_val2017.json
  python train.py --config=configs/coco_detection.py:retina_t \
    --config.init_from=weights/rmt_t

The argument is head and backbone: retina_t, retina_s, retina_b, retina_l,
mask_t, mask_s, mask_b or mask_l. A smoke test trains a tiny model on packaged
scenes:

  python train.py --config=configs/coco_detection.py:mask_t,smoke

Batches of 16 images within 1333 x 800 pixels, half of them mirrored; images
without objects are left out. AdamW with a peak learning rate of 4e-4, for L of
2e-4, which is divided by ten after epochs 8 and 11. Images of both orientations
share one canvas of 1344 x 1344 pixels, where the release pads each batch to its
largest image. The 36 epochs with images of many sizes (3x), which the release
trains Mask R-CNN and Cascade Mask R-CNN with, are not here.

Result: not measured. Published AP of boxes: RetinaNet T 45.1, S 47.8, B 49.1, L
49.4; Mask R-CNN T 47.1, S 49.0, B 51.1, L 51.6, of masks 42.6, 43.9, 45.5, 45.9
(arXiv 2309.11523).
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `HEAD_MODEL[,smoke]`."""
  names = [f'{head}_{size}' for head in ('retina', 'mask') for size in 'tsbl']
  name, rest = recipes.split_model(arg, names)
  head, _, size = name.partition('_')
  config = recipes.detection(f'rmt_{size}', head)
  config.batch_size = 16  # on 8 GPUs
  config.eval_batch_size = 8
  config.num_epochs = 12
  config.model.drop_path_rate = {'t': 0.1, 's': 0.15, 'b': 0.4, 'l': 0.5}[size]
  config.detector.round_extents = 32  # as mmdetection pads
  config.data.name = 'coco'
  config.data.test_split = ''  # its boxes are not public
  config.data.fit_within = (1333, 800)
  config.data.without_objects = False
  config.data.workers = 8  # ours
  config.optimizer.learning_rate = 2e-4 if size == 'l' else 4e-4
  config.optimizer.schedule = 'drops'
  config.optimizer.warmup_epochs = 0.0
  config.optimizer.warmup_steps = 500
  config.optimizer.warmup_learning_rate = 1e-3 * config.optimizer.learning_rate
  config.optimizer.weight_decay = 1e-4 if head == 'retina' else 0.05
  config.optimizer.decay = 'all' if head == 'retina' else 'not_norms'
  return recipes.with_argument(config, rest)
