"""The card of weights, and the files that carry it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import random_variables

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import safetensors_file

_FIELDS = factory.resolve(
    'swat_compact',
    {
        'widths': (8, 8, 16, 16),
        'depths': (1, 1, 1, 1),
        'num_heads': (1, 1, 1, 1),
    },
)
_CARD = card_lib.Card(
    name='swat_compact',
    fields=_FIELDS,
    num_classes=3,
    class_names=('cat', 'dog', 'eel'),
    image_size=(32, 48),
    mean=(0.1, 0.2, 0.3),
    std=(0.4, 0.5, 0.6),
    crop=0.875,
    dtype='bfloat16',
    figures={'seed': 3},
)


def test_there_and_back_again(tmp_path):
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(_CARD.to_dict()))
  fields = card_lib.read(path)
  assert card_lib.is_card(fields)
  # Another library's, with the same keys.
  assert not card_lib.is_card({'architecture': 'resnet50'})
  read = card_lib.from_dict(fields, 'there')
  assert read.make_model() == _CARD.make_model()
  for field in dataclasses.fields(card_lib.Card):
    if field.name != 'fields':  # JSON has lists for tuples
      assert getattr(read, field.name) == getattr(_CARD, field.name)


def test_squeezing_is_a_mode_where_others_read_the_card():
  card = dataclasses.replace(_CARD, crop=0.0)
  images = card.to_dict()['pretrained_cfg']
  assert images['crop_mode'] == 'squash' and images['crop_pct'] == 1.0
  assert card_lib.from_dict(card.to_dict(), '').crop == 0.0
  assert _CARD.to_dict()['pretrained_cfg']['crop_mode'] == 'center'


def test_above_the_cards_size_no_margin_is_cut_off():
  assert _CARD.crop_at((32, 48)) == _CARD.crop_at((24, 24)) == 0.875
  assert _CARD.crop_at((48, 48)) == 1.0
  squeezed = dataclasses.replace(_CARD, crop=0.0)
  assert squeezed.crop_at((48, 48)) == 0.0


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda f: f.pop('num_classes'), "there has no 'num_classes'"),
        (lambda f: f.update(architecture='swat'), 'swat_compact'),
        (lambda f: f['model_args'].update(gate='yes'), 'gate'),
        (lambda f: f['pretrained_cfg'].pop('mean'), "no 'mean'"),
        (lambda f: f.update(pretrained_cfg=None), 'there: '),
        (lambda f: f['pretrained_cfg'].update(crop_pct=None), 'there: '),
        (lambda f: f['pretrained_cfg'].update(mean=[0.5]), '3 numbers'),
        (lambda f: f['pretrained_cfg'].update(label_names=['a']), '1 names'),
    ],
)
def test_a_wrong_card_is_one_line(change, said):
  fields = json.loads(json.dumps(_CARD.to_dict()))
  change(fields)
  with pytest.raises(UserError, match=said):
    card_lib.from_dict(fields, 'there')


def test_a_file_that_is_no_card(tmp_path):
  for content in ('[1]', '{', ''):
    (tmp_path / 'a.json').write_text(content)
    with pytest.raises(UserError, match=r'a\.json'):
      card_lib.read(tmp_path / 'a.json')


def test_safetensors_keep_arrays_and_card(tmp_path):
  path = tmp_path / 'model.safetensors'
  variables = random_variables.nested(_CARD.make_model(), (1, 32, 48, 3))
  # One that does not lie in memory as C has it.
  kernel = np.asarray(variables['params']['head']['kernel']).copy(order='F')
  variables['params']['head']['kernel'] = kernel
  safetensors_file.write(path, variables, _CARD)
  read, card = safetensors_file.read(path)
  assert card.make_model() == _CARD.make_model()
  jax.tree.map(np.testing.assert_array_equal, read, variables)
  assert not list(tmp_path.glob('*.part'))

  whole = path.read_bytes()
  path.write_bytes(whole[:-9])
  with pytest.raises(UserError, match='is damaged'):
    safetensors_file.read(path)
  with pytest.raises(UserError, match='does not exist'):
    safetensors_file.read(tmp_path / 'other.safetensors')


def test_the_card_may_lie_beside(tmp_path):
  from safetensors import numpy as safetensors

  path = tmp_path / 'model.safetensors'
  path.write_bytes(safetensors.save({'params/head/bias': np.zeros(3)}))
  with pytest.raises(UserError, match='which model it is for'):
    safetensors_file.read(path)
  (tmp_path / 'config.json').write_text(json.dumps(_CARD.to_dict()))
  assert safetensors_file.read(path)[1].class_names == _CARD.class_names
