"""RMT with RetinaNet, Mask R-CNN and Cascade Mask R-CNN on COCO, as released.

  gswinrmt prepare detection coco --images DIR \
    --boxes instances_train2017.json --val instances_val2017.json
  python train.py --config=configs/coco_detection.py:retina_t \
    --config.init_from=weights/rmt_t

The argument is head, backbone and, for 36 epochs instead of 12, `3x`:

  retina_t     retina_s     retina_b     retina_l
  mask_t       mask_s       mask_b       mask_l
               mask_s_3x    mask_b_3x    mask_l_3x
               cascade_s_3x cascade_b_3x

A smoke test trains a tiny model on packaged scenes:

  python train.py --config=configs/coco_detection.py:mask_t,smoke

Batches of 16 images (mask_l_3x: 8), half of them mirrored; images without
objects are left out. For 12 epochs, images are resized to fit 1333 x 800
pixels. For 36, they are resized to many sizes within these, half of them after
a random crop, as in DETR (`augment.multi_scale`). AdamW with a peak learning
rate of 4e-4 (2e-4 for L, and for B over 36 epochs), which is divided by ten
after epochs 8 and 11, or 27 and 33. Images of both orientations share one
canvas of 1344 x 1344 pixels, where the release pads each batch to its largest
image.

Result: not measured. Published AP of boxes, % (arXiv 2309.11523):

  RetinaNet               T 45.1   S 47.8   B 49.1   L 49.4
  Mask R-CNN              T 47.1   S 49.0   B 51.1   L 51.6
    masks                   42.6     43.9     45.5     45.9
  Mask R-CNN, 3x                   S 50.7   B 52.2
    masks                            44.9     46.1
  Cascade Mask R-CNN, 3x           S 53.2   B 54.5
    masks                            46.1     47.2
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `HEAD_MODEL[_3x][,smoke]`."""
  names = [f'{head}_{size}' for head in ('retina', 'mask') for size in 'tsbl']
  names += [f'mask_{size}_3x' for size in 'sbl']
  names += [f'cascade_{size}_3x' for size in 'sb']
  name, rest = recipes.split_model(arg, names)
  head, size, *long = name.split('_')
  config = recipes.detection(f'rmt_{size}', head)
  config.batch_size = 8 if name == 'mask_l_3x' else 16  # on 8 GPUs
  config.eval_batch_size = 8
  config.num_epochs = 36 if long else 12
  config.model.drop_path_rate = {'t': 0.1, 's': 0.15, 'b': 0.4, 'l': 0.5}[size]
  config.detector.round_extents = 32  # as mmdetection pads
  config.data.name = 'coco'
  config.data.test_split = ''  # its boxes are not public
  config.data.fit_within = (1333, 800)
  config.data.without_objects = False
  config.data.workers = 8  # ours
  config.augment.multi_scale = bool(long)
  slow = size == 'l' or (size == 'b' and long)
  config.optimizer.learning_rate = 2e-4 if slow else 4e-4
  config.optimizer.schedule = 'drops'
  config.optimizer.drop_epochs = (27, 33) if long else (8, 11)
  config.optimizer.warmup_epochs = 0.0
  config.optimizer.warmup_steps = 500
  config.optimizer.warmup_learning_rate = 1e-3 * config.optimizer.learning_rate
  config.optimizer.weight_decay = 1e-4 if head == 'retina' else 0.05
  decays = {'retina': 'all', 'mask': 'not_norms', 'cascade': 'not_norm_layers'}
  config.optimizer.decay = decays[head]
  return recipes.with_argument(config, rest)
