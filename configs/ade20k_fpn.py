"""RMT-T, S, B or L with Semantic FPN on ADE20K, as released.

  gswinrmt prepare segmentation ade20k --images DIR --labels DIR --zero-is-void
  python train.py --config=configs/ade20k_fpn.py:t \
    --config.init_from=weights/rmt_t

The argument is the backbone: t, s, b or l. A smoke test trains a tiny model on
packaged images in under a minute:

  python train.py --config=configs/ade20k_fpn.py:t,smoke

80,000 steps with batches of 16 crops of 512 x 512 pixels, AdamW with a peak
learning rate of 1e-4.

Result: not measured. Published mean IoU: T 46.4 %, S 49.4 %, B 50.4 %, L 51.4 %
(arXiv 2309.11523).
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `MODEL[,smoke]`."""
  model, rest = recipes.split_model(arg, ('t', 's', 'b', 'l'))
  config = recipes.ade20k(f'rmt_{model}', 'fpn')
  config.num_steps = 80_000
  config.dtype = 'float32'
  config.optimizer.learning_rate = 1e-4
  config.optimizer.power = 0.9
  config.optimizer.final_learning_rate = 1e-6
  config.optimizer.weight_decay = 1e-4
  config.optimizer.decay = 'all'
  return recipes.with_argument(config, rest)
