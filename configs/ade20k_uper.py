"""RMT-S, B or L with UperNet on ADE20K, as released.

  gswinrmt prepare segmentation ade20k --images DIR --labels DIR --zero-is-void
  python train.py --config=configs/ade20k_uper.py:s \
    --config.init_from=weights/rmt_s

The argument is the backbone: s, b or l. A smoke test trains a tiny model on
packaged images in under a minute:

  python train.py --config=configs/ade20k_uper.py:s,smoke

160,000 steps with batches of 16 crops of 512 x 512 pixels, AdamW with a peak
learning rate of 6e-5, bfloat16 (released: float16 with loss scaling).

Result: not measured. Published mean IoU: S 49.8 %, B 52.0 %, L 52.8 %
(arXiv 2309.11523).
"""

import ml_collections

from gswinrmt_jax import recipes


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` is `MODEL[,smoke]`."""
  model, rest = recipes.split_model(arg, ('s', 'b', 'l'))
  config = recipes.ade20k(f'rmt_{model}', 'uper')
  config.num_steps = 160_000
  config.optimizer.learning_rate = 6e-5
  config.optimizer.warmup_steps = 1500
  config.optimizer.warmup_learning_rate = 6e-5 * 1e-6
  config.optimizer.weight_decay = 0.01
  config.optimizer.decay = 'not_norms'
  return recipes.with_argument(config, rest)
