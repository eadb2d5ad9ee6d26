"""Tests the card of weights, `config.json`."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from tiny_card import CARD

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.weights import card as card_lib


def _written():
  return json.loads(json.dumps(CARD.to_dict()))


def test_there_and_back_again(tmp_path):
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(CARD.to_dict()))
  read = card_lib.read(path)
  assert read.make_model() == CARD.make_model()
  for field in dataclasses.fields(card_lib.Card):
    if field.name != 'fields':  # JSON turns tuples into lists
      assert getattr(read, field.name) == getattr(CARD, field.name)


def test_the_model_has_the_dtype_and_takes_the_image_size():
  assert CARD.make_model().dtype == 'bfloat16'
  assert CARD.make_model((99, 33), 'float32').dtype == 'float32'
  with pytest.raises(UserError, match=r'swat_compact: .* 32x32 .*, not 64x31'):
    CARD.make_model((64, 31))
  with pytest.raises(UserError, match='float16'):
    CARD.make_model(dtype='float16')


def test_squeezing_is_a_mode_where_others_read_the_card():
  card = dataclasses.replace(CARD, crop=0.0)
  images = card.to_dict()['pretrained_cfg']
  assert images['crop_mode'] == 'squash' and images['crop_pct'] == 1.0
  assert card_lib.from_dict(card.to_dict(), '').crop == 0.0
  assert CARD.to_dict()['pretrained_cfg']['crop_mode'] == 'center'


def test_above_the_cards_size_no_margin_is_cut_off():
  assert CARD.crop_at((32, 48)) == CARD.crop_at((24, 24)) == 0.875
  assert CARD.crop_at((48, 48)) == 1.0
  squeezed = dataclasses.replace(CARD, crop=0.0)
  assert squeezed.crop_at((48, 48)) == 0.0


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'num_classes': ...}, "there has no 'num_classes'"),
        ({'num_classes': 3.7}, 'num_classes 3.7 must be a whole number'),
        ({'architecture': 'swat'}, 'swat_compact'),
        ({'model_args': {'gate': 'yes'}}, 'gate'),
        ({'model_args': None}, 'there: '),
        ({'figures': [1]}, r'figures \[1\] must be a dict'),
        ({'mean': ...}, "no 'mean'"),
        ({'mean': [0.5, np.nan, 0.5]}, '3 finite'),
        ({'mean': [123.675, 116.28, 103.53]}, 'must be of pixels / 255'),
        ({'std': [0.5, 0.0, 0.5]}, 'above 0'),
        ({'std': [58.395, 57.12, 57.375]}, 'must be of pixels / 255'),
        ({'crop_pct': None}, 'there: '),
        ({'crop_pct': 0.001}, 'must be 0, or from 0.1 to 1'),
        ({'label_names': ['a']}, '1 names'),
        ({'label_names': ['a', 1, 'c']}, 'not a st'),
        ({'input_size': [3, np.inf, 1]}, 'there'),
        ({'input_size': [3, 32.5, 32]}, 'whole'),
        ({'input_size': [3, 31, 32]}, 'at least 32x32 pixels, not 31x32'),
        (
            {'input_size': [3, 32, 4097]},
            'of 32x4097 pixels are too',
        ),
    ],
)
def test_a_wrong_card_is_one_line(change, said):
  fields = _written()
  ((key, value),) = change.items()
  place = fields if key in fields else fields['pretrained_cfg']
  assert key in place
  if value is ...:
    del place[key]
  else:
    place[key] = value
  with pytest.raises(UserError, match=said):
    card_lib.from_dict(fields, 'there')


def test_canvases_of_dense_models_may_be_larger():
  """As the bounds of images may; a run would find it out after training."""
  detector = card_lib.Card(
      name='rmt_t',
      fields=factory.resolve('rmt_t', {'feature_norm': True}),
      num_classes=3,
      dense={'head': 'retina'},
      image_size=(4000, 5024),
      mean=(0.5,) * 3,
      std=(0.5,) * 3,
  )
  assert detector.make_model().head.num_classes == 3
  with pytest.raises(UserError, match='at most 16,384 pixels'):
    detector.make_model((32, 16_416))


def test_variables_are_traced_on_small_images(monkeypatch):
  """Tables of all pairs of tokens of the largest would fill the memory."""
  shapes, uncached = [], factory.variable_shapes.__wrapped__
  monkeypatch.setattr(factory, 'variable_shapes', uncached)
  monkeypatch.setattr(
      jax,
      'eval_shape',
      lambda _, *args: shapes.extend(image.shape for image in args[1:]) or {},
  )
  dataclasses.replace(CARD, image_size=(4096, 4096)).variable_shapes()
  assert shapes == [(1, 32, 32, 3)]


def test_a_file_that_is_no_card(tmp_path):
  path = tmp_path / 'a.json'
  assert card_lib.read(path) is None
  # A card of another library may have the same keys.
  fields = {**CARD.to_dict(), 'library_name': 'timm'}
  for content in ('[1]', json.dumps(fields)):
    path.write_text(content)
    assert card_lib.read(path) is None
  for content in ('{', ''):
    path.write_text(content)
    with pytest.raises(UserError, match=r'a\.json cannot be read'):
      card_lib.read(path)
