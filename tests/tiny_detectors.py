"""Detectors of a few thousand parameters, with random weights."""

import pathlib

import random_variables

from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.models import factory
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import load

NAMES = ('cat', 'dog', 'bird')
BACKBONE = {
    'widths': (4, 6, 8, 10),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 1, 1),
}
_RCNN = {
    'channels': 6,
    'rpn_channels': 5,
    'linear_channels': 8,
    'mask_channels': 4,
    'candidates': 200,  # each is compared with each
    'proposals': 24,
    'detections': 6,
}
HEADS = {
    'retina': {
        'channels': 6,
        'tower_channels': 5,
        'tower_depth': 2,
        'detections': 6,
    },
    'mask': _RCNN,
    'cascade': _RCNN | {'conv_channels': 3},
}


def weights(head, *, name='rmt_t', fit_within=None, **changes):
  """Returns weights for 3 classes that find something in every image.

  Of the backbones, 'rmt_swin_t' is compiled faster than 'rmt_t'.
  """
  fields = factory.resolve(name, BACKBONE | {'feature_norm': True})
  card = card_lib.Card(
      name=name,
      fields=fields,
      num_classes=len(NAMES),
      dense={'head': head, 'least_score': 0.0} | HEADS[head] | changes,
      class_names=NAMES,
      image_size=(64, 64),
      mean=(0.4,) * 3,
      std=(0.3,) * 3,
      fit_within=fit_within,
  )
  variables = random_variables.nested(card.make_model(), (1, 32, 32, 3))
  # As if loaded: otherwise, a model and its file would be compiled each.
  variables = mesh.Devices().replicate(variables)
  return load.Weights(variables, card, f'a tiny {head}', pathlib.Path())
