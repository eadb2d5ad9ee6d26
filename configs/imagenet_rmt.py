"""RMT-T, S, B or L on ImageNet-1k, as released.

  gswinrmt prepare imagenet --help
  python train.py --config=configs/imagenet_rmt.py:t

The argument is the model: t, s, b or l. With token labels, s, b or l
(docs/token_labels.md):

  python train.py --config=configs/imagenet_rmt.py:s,token_label \
    --config.data.label_maps=DIR

To see that all of it runs, a tiny model trains for a few seconds on the
packaged digits:

  python train.py --config=configs/imagenet_rmt.py:t,smoke

Result: not measured. Published, the best of weights and moving average over all
epochs on the validation set: T 82.4 %, S 84.1 %, B 85.0 %, L 85.5 %; with token
labels S 84.8 %, B 85.6 %, L 86.1 % (docs/imagenet.md).
"""

import ml_collections

from gswinrmt_jax import recipes

_MODELS = ('t', 's', 'b', 'l')


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  model, _, rest = (arg or '').partition(',')
  if model not in _MODELS:
    raise ValueError(
        f"'{model}' is no model: one of {', '.join(_MODELS)} goes behind the "
        'colon, as in imagenet_rmt:t'
    )
  labels, _, tail = rest.partition(',')
  if labels == 'token_label':
    if model == 't':
      raise ValueError('token labels are for s, b and l: T has no dense head')
    config = recipes.imagenet_token_labels(f'rmt_{model}_tl')
    return recipes.with_argument(config, tail or None)
  config = recipes.imagenet(f'rmt_{model}')
  return recipes.with_argument(config, rest or None)
