"""Tests which arrays a run takes over from other weights."""

import dataclasses
import types

from flax import traverse_util
import jax
import numpy as np
import pytest

from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import fine_tuning
from gswinrmt_jax.weights import load


def _variables(classes, value, **more):
  return {
      'params': {
          'stem': {'kernel': np.full((3, 4), value, np.float32)},
          'head': {'kernel': np.full((4, classes), value, np.float32)},
          **more,
      },
      'batch_stats': {'norm': {'mean': np.full(2, value, np.float32)}},
  }


def test_everything_that_fits_is_taken():
  source = _variables(3, 7.0, gate={'bias': np.ones(4, np.float32)})
  moved, report = fine_tuning.transfer(_variables(5, 0.0), source)
  assert moved['params']['stem']['kernel'][0, 0] == 7
  assert moved['batch_stats']['norm']['mean'][0] == 7
  assert moved['params']['head']['kernel'].shape == (4, 5)
  assert not moved['params']['head']['kernel'].any()
  assert report == [
      'loaded: 2 arrays',
      'randomly initialised: params/head/kernel (is (4, 3) in the weights, '
      '(4, 5) here)',
      'not used: params/gate/bias',
  ]


def test_a_classifier_becomes_the_backbone_of_a_segmenter():
  initial = {
      'params': {
          'backbone': {'stem': _variables(3, 0.0)['params']['stem']},
          'decode_head': {'kernel': np.zeros((2, 3), np.float32)},
      },
      'batch_stats': {'backbone': _variables(3, 0.0)['batch_stats']},
  }
  source = _variables(3, 7.0)
  weights = types.SimpleNamespace(variables=source, origin='there')
  fine_tuning.check(initial, weights)
  moved, report = fine_tuning.transfer(initial, source)
  assert (moved['params']['backbone']['stem']['kernel'] == 7).all()
  assert (moved['batch_stats']['backbone']['norm']['mean'] == 7).all()
  assert not moved['params']['decode_head']['kernel'].any()
  assert report == [
      'loaded: 2 arrays',
      'randomly initialised: params/decode_head/kernel (is not in the weights)',
      'not used: params/backbone/head/kernel',
  ]
  again, report = fine_tuning.transfer(initial, moved)
  assert report == ['loaded: 3 arrays']
  assert (again['params']['backbone']['stem']['kernel'] == 7).all()


def test_a_head_of_the_same_classes_is_taken():
  moved, report = fine_tuning.transfer(_variables(3, 0.0), _variables(3, 7.0))
  assert report == ['loaded: 3 arrays']
  assert (moved['params']['head']['kernel'] == 7).all()


def test_a_head_of_as_many_other_classes_starts_anew():
  source = load.load('digits_small')
  info = datasets.info('digits')
  assert fine_tuning.of_other_classes(source, info) == {}
  names = (*info.class_names[:3], 'cat', *info.class_names[4:])
  info = dataclasses.replace(info, class_names=names)
  other = fine_tuning.of_other_classes(source, info)
  assert other.keys() == {'params/head/kernel', 'params/head/bias'}
  why = "is of other classes: '3' is 'cat' here"
  assert {*other.values()} == {why}
  initial = jax.tree.map(lambda x: np.full_like(x, 7), source.variables)
  moved, report = fine_tuning.transfer(initial, source.variables, other)
  assert f'randomly initialised: params/head/bias ({why})' in report
  for name, array in traverse_util.flatten_dict(moved, sep='/').items():
    assert (np.asarray(array) == 7).all() == (name in other), name
  # Another number of classes shows in the shapes.
  info = dataclasses.replace(info, class_names=names[1:])
  assert fine_tuning.of_other_classes(source, info) == {}


def test_what_the_weights_lack_starts_anew():
  fresh = _variables(3, 0.0, gate={'bias': np.ones(4, np.float32)})
  moved, report = fine_tuning.transfer(fresh, _variables(3, 7.0))
  assert report[1:] == [
      'randomly initialised: params/gate/bias (is not in the weights)'
  ]
  assert (moved['params']['gate']['bias'] == 1).all()


def test_another_model_is_refused():
  other = _variables(3, 7.0)
  other['params']['stem']['kernel'] = np.zeros((5, 4), np.float32)
  with pytest.raises(UserError, match=r'there is for another model.*\(5, 4\)'):
    fine_tuning.check(
        _variables(3, 0.0),
        types.SimpleNamespace(variables=other, origin='there'),
    )


def test_what_is_frozen_must_be_in_the_weights():
  initial = _variables(3, 0.0, stage2={'bias': np.ones(4, np.float32)})
  weights = types.SimpleNamespace(variables=_variables(3, 7.0), origin='there')
  fine_tuning.check(initial, weights, 'stage1')
  said = "is 'backbone', but params/stage2/bias is not in the weights: ra"
  with pytest.raises(UserError, match=said):
    fine_tuning.check(initial, weights, 'backbone')
  initial['batch_stats'] = {'stage2': {'mean': np.zeros(4, np.float32)}}
  with pytest.raises(UserError, match='statistics is True, but batch_stats/st'):
    fine_tuning.check(initial, weights, freeze_statistics=True)


def test_a_list_of_many_names_is_cut():
  source = _variables(
      3, 7.0, **{f'm{i}': {'bias': np.ones(1)} for i in range(10)}
  )
  _, report = fine_tuning.transfer(_variables(3, 0.0), source)
  assert report[-1].endswith('params/m7/bias and 2 more')
