"""Ablation of one component on CIFAR-10, by the default reading of Table 2.

  python train.py --config=configs/ablation.py:retention,no_gate

The argument is `BASE,SWITCH`: the base model (bare, rmt, retention or swat) and
the change to it (see docs/experiments.md; `base` changes nothing). On
Mini-ImageNet, with the large models:

  python train.py --config=configs/ablation.py:retention,no_gate,mini

A smoke test, which trains a tiny model in under a minute:

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
