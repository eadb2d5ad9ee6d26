"""One component more or less than a base, on CIFAR-10: Table 2 of the paper.

  python train.py --config=configs/ablation.py:retention,no_gate

The argument is `BASE,SWITCH`: what to start from (bare, rmt, retention, swat)
and what to change (docs/experiments.md lists them; `base` changes nothing). On
Mini-ImageNet, with the large models:

  python train.py --config=configs/ablation.py:retention,no_gate,mini

A tiny model for a few seconds, to see that all of it runs:

  python train.py --config=configs/ablation.py:retention,no_gate,smoke

Result: not measured.
"""

import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.experiments import switches


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  base, _, rest = (arg or '').partition(',')
  switch, _, rest = rest.partition(',')
  fields = switches.fields(base, switch)
  family = switches.BASES[base].family
  if rest.split(',')[0] == 'mini':
    config = recipes.mini_imagenet(f'{family}_large')
    rest = rest.partition(',')[2]
  else:
    config = recipes.cifar10(f'{family}_compact')
  config.model.update(fields)
  return recipes.with_argument(config, rest or None, table2=True)
