"""What a PyTorch checkpoint holds."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import released_rmt

import gswinrmt_jax
from gswinrmt_jax import weights
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory, named
from gswinrmt_jax.weights import recognition


@functools.cache
def _state_dict(name, **fields):
  """A released model's names and shapes, with one value for all numbers."""
  model = gswinrmt_jax.create_model(name, **{'num_classes': 1000} | fields)
  shapes = factory.variable_shapes(model, (32, 32, 3))
  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
  return weights.to_torch_state_dict(zeros, model)


@pytest.mark.parametrize('name', ['rmt_t', 'rmt_s', 'rmt_b', 'rmt_l'])
def test_the_released_sizes_are_told_apart(name):
  small = {'num_classes': 7}  # numbers of the last layer are many
  found = recognition.recognise(_state_dict(name, **small))
  assert found == recognition.Recognised(name, {}, 7)
  parameters = {
      key: array
      for key, array in _state_dict(name, **small).items()
      if 'Relpos' not in key
  }
  assert recognition.recognise(parameters).name == name


@pytest.mark.parametrize(
    ('plain', 'expected'),
    [
        ('rmt_t', ('rmt_t', {'dense_head': True})),  # no such named model
        ('rmt_s', ('rmt_s_tl', {})),
        ('rmt_b', ('rmt_b_tl', {})),
        ('rmt_l', ('rmt_l_tl', {})),
    ],
)
def test_a_dense_head_is_seen(plain, expected):
  """A linear map of the last stage, `aux_head` in the released code."""
  arrays = _state_dict(plain, num_classes=7)
  width = named.MODELS[plain].widths[-1]
  arrays = arrays | {'aux_head.weight': np.zeros((7, width))}
  found = recognition.recognise(arrays)
  assert (found.name, found.fields, found.num_classes) == (*expected, 7)


def test_another_size_needs_its_full_stages():
  arrays = released_rmt.state_dict()
  with pytest.raises(UserError, match=r'--full-stages'):
    recognition.recognise(arrays)
  found = recognition.recognise(arrays, full_stages=(3, 4))
  assert found.num_classes == 10
  built = gswinrmt_jax.create_model(
      found.name, num_classes=10, drop_path_rate=0.0, **found.fields
  )
  assert dataclasses.asdict(built.arch) == dataclasses.asdict(
      released_rmt.model().arch
  )
  bare = {key: a for key, a in arrays.items() if 'Relpos' not in key}
  with pytest.raises(UserError, match='heads are not known'):
    recognition.recognise(bare, full_stages=(3, 4))


def test_a_detection_backbone():
  arrays = _state_dict('rmt_t', num_classes=0, feature_norm=True)
  checkpoint = {
      'meta': {'epoch': 12},
      'state_dict': {
          **{f'backbone.{key}': array for key, array in arrays.items()},
          'neck.conv.weight': np.zeros(3),
          'bbox_head.conv.weight': np.zeros(3),
      },
  }
  where, found, others = recognition.unwrap(checkpoint)
  assert where == 'state_dict' and others == 2
  assert found.keys() == arrays.keys()
  model = recognition.recognise(found)
  assert model == recognition.Recognised('rmt_t', {'feature_norm': True}, 0)


def test_wrappers_prefixes_and_entries():
  arrays = {'head.weight': np.zeros((2, 3))}
  assert recognition.unwrap(arrays) == ('', arrays, 0)
  parallel = {'module.head.weight': arrays['head.weight']}
  wrapped = {'model': parallel, 'model_ema': {'state_dict': arrays}}
  where, found, _ = recognition.unwrap(wrapped)
  assert where == 'model' and found.keys() == arrays.keys()
  where, found, _ = recognition.unwrap(wrapped, 'model_ema')
  assert where == 'model_ema/state_dict' and found.keys() == arrays.keys()
  with pytest.raises(UserError, match=r'no entry ema .*model, model_ema'):
    recognition.unwrap(wrapped, 'ema')
  # A lone tensor, or a name, beside the weights.
  mixed = {'model': 'rmt_t', 'best': np.zeros(()), 'state_dict': arrays}
  assert recognition.unwrap(mixed)[0] == 'state_dict'
  endless = {}
  endless['model'] = endless
  with pytest.raises(UserError, match='no weights'):
    recognition.unwrap(endless)
  for nothing in ({'epoch': 3}, [1, 2], None):
    with pytest.raises(UserError, match='no weights'):
      recognition.unwrap(nothing)


def test_something_else_is_no_rmt():
  with pytest.raises(UserError, match='is no RMT'):
    recognition.recognise({'conv1.weight': np.zeros((64, 3, 7, 7))})


@pytest.mark.parametrize(
    ('key', 'array'),
    [
        ('layers.0.blocks.0.pos.conv.weight', np.zeros(())),
        ('layers.0.blocks.0.pos.conv.weight', np.zeros((0, 1, 3, 3))),
        ('layers.1.Relpos.decay', np.zeros(())),
    ],
)
def test_odd_shapes_are_one_line(key, array):
  arrays = {**released_rmt.state_dict(), key: array}
  with pytest.raises(UserError, match='its arrays have other shapes'):
    recognition.recognise(arrays, full_stages=(3, 4))


def test_names_without_end():
  array = np.zeros(1, np.float32)
  name = 'module.' * 100_000 + 'a'
  assert recognition.unwrap({name: array})[2] == 0
  with pytest.raises(UserError, match=r'no weights .*\(entries: ') as caught:
    recognition.unwrap({name: 7, '\n\x1b[2J': 8})
  assert len(str(caught.value)) < 200 and '\x1b' not in str(caught.value)


def test_decay_ranges_are_found_again():
  for name in ('rmt_t', 'rmt_s', 'rmt_b', 'rmt_l'):
    arrays = _state_dict(name, num_classes=7)
    found = recognition._sizes(arrays)
    assert found['decay_ranges'] == named.MODELS[name].decay_ranges
