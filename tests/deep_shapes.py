"""Shapes of the variables of deep models, from one traced block per stage."""

import dataclasses
import functools
import re

from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense.dense_model import DenseModel

_traced = factory.variable_shapes  # which tests replace by the function below


@functools.cache
def variable_shapes(model, image_shape=None):
  """Returns `factory.variable_shapes`, which traces every block."""
  depths = model.arch.depths
  thin = dataclasses.replace(model.arch, depths=(1,) * len(depths))
  if isinstance(model, DenseModel):
    thin = model.clone(backbone=model.backbone.clone(arch=thin))
  else:
    thin = model.clone(arch=thin)
  shapes = _traced(thin, image_shape)
  return {kind: _deepened(tree, depths) for kind, tree in shapes.items()}


def _deepened(tree, depths):
  """Repeats the block of each stage, also of a dense model's backbone."""
  found = dict(tree)
  for name, inner in tree.items():
    if name == 'backbone':
      found[name] = _deepened(inner, depths)
    elif stage := re.fullmatch(r'stage(\d)', name):
      count = depths[int(stage[1]) - 1]
      found[name] = {f'block{i:02d}': inner['block00'] for i in range(count)}
  return found
