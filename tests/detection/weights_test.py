"""Tests detectors in files with mmdetection's names, in and out."""

import dataclasses
import io

import detection_reference as reference
from flax import traverse_util
import jax
import ml_collections
import numpy as np
import pytest
import random_variables
import released_rmt
import tiny_detectors

from gswinrmt_jax import create_model, weights
from gswinrmt_jax.deploy import convert, export
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models.dense.detector import create_detector
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import fine_tuning
from gswinrmt_jax.weights import load, rmt_checkpoint, torch_file

_HEADS = ('retina', 'mask', 'cascade')


def _saved(path, state_dict):
  """Writes a checkpoint as mmdetection does."""
  meta = {'epoch': 12, 'CLASSES': list(tiny_detectors.NAMES)}
  torch_file.write(path, {'meta': meta, 'state_dict': state_dict})
  return path


def _converted(source, out):
  said = io.StringIO()
  convert.convert(source, out, full_stages=(3, 4), terminal=Terminal(said))
  return said.getvalue()


def _state_dict(head):
  found = tiny_detectors.weights(head)
  return weights.to_torch_state_dict(found.variables, found.card.make_model())


def _equal(one, two):
  jax.tree.map(np.testing.assert_array_equal, dict(one), dict(two))


@pytest.mark.parametrize('head', _HEADS)
def test_mmdetections_names_and_layouts(head):
  """Of the reference's heads, which compute the same outputs as there."""
  system = {'mask': 'mask_rcnn'}.get(head, head)
  sizes = reference.text('config_json')
  fields = {'channels': sizes['channels'], 'num_classes': sizes['classes']}
  if head == 'retina':
    tower = reference.arrays()['retina/sd/bbox_head.cls_convs.0.conv.weight']
    fields |= {'tower_channels': len(tower)}
  else:
    fields |= {'rpn_channels': sizes['head'], 'mask_channels': sizes['mask']}
    fields |= {'linear_channels': sizes['fc'], 'conv_channels': sizes['conv']}
  with jax.enable_x64(True):
    heads = reference.variables(system)
  model = create_detector(
      'rmt_t', head=head, **fields, **tiny_detectors.BACKBONE
  )
  variables = random_variables.nested(model, (1, 32, 32, 3))
  for kind, tree in heads.items():
    neck = variables[kind]['head'].get('neck', {})
    variables[kind]['head'] = tree
    for name in filter(lambda name: 'lateral' in name, neck):
      tree['neck'][name] = neck[name]  # The backbone has other channels.
  found = {
      name: array
      for name, array in weights.to_torch_state_dict(variables, model).items()
      if not name.startswith('backbone.') and 'num_batches' not in name
  }
  prefix = f'{system}/sd/'
  want = {
      name.removeprefix(prefix): array
      for name, array in reference.arrays().items()
      if name.startswith(prefix) and 'num_batches' not in name
  }
  assert found.keys() == want.keys()
  for name, array in want.items():
    if 'lateral' not in name:
      np.testing.assert_array_equal(
          found[name], np.float32(array), err_msg=name
      )


@pytest.mark.parametrize('head', _HEADS)
def test_a_file_becomes_a_model_and_the_same_file(head, tmp_path):
  arrays = _state_dict(head)
  source = _saved(tmp_path / 'a.pth', arrays)
  said = _converted(source, tmp_path / 'out')
  title = {
      'retina': 'RetinaNet',
      'mask': 'Mask R-CNN',
      'cascade': 'Cascade Mask R-CNN',
  }[head]
  assert f', {title}, 3 classes\n' in said
  assert 'for images within 1333 x 800 pixels' in said
  for word in ('missing', 'unexpected', 'left out', 'differs'):
    assert word not in said
  found = load.load(tmp_path / 'out')
  assert found.card.class_names == tiny_detectors.NAMES
  assert found.card.dense['round_extents'] == 32
  assert found.card.dense['least_score'] == 0.05
  assert found.card.fit_within == (1333, 800)
  assert found.card.image_size == (800, 1344)
  assert found.size(900) == (1500, 900)
  _equal(found.variables, tiny_detectors.weights(head).variables)
  back = weights.to_torch_state_dict(found.variables, found.card.make_model())
  assert back.keys() == arrays.keys()
  for name, array in arrays.items():
    np.testing.assert_array_equal(back[name], array, err_msg=name)


def test_export_writes_the_names(tmp_path):
  found = tiny_detectors.weights('retina')
  best = {'step': 5, 'epoch': 2, 'test_ap': 0.4567, 'test_ap_small': 0.1}
  figures = {'best': best, 'seed': 0}
  found = dataclasses.replace(
      found,
      card=dataclasses.replace(found.card, figures=figures),
      recipe=ml_collections.ConfigDict({'data': {'name': 'cells'}}),
      step=5,
  )
  said = io.StringIO()
  path = export.export(found, 'torch', tmp_path / 'out', Terminal(said))
  assert "differ by 0 from the model's own" in said.getvalue()
  arrays = torch_file.read(path)['state_dict']
  assert arrays.keys() == _state_dict('retina').keys()
  assert load.load(path).card.dense == found.card.dense
  card = (path.parent / 'README.md').read_text()
  assert 'RetinaNet, 3 classes of objects' in card
  assert 'pipeline_tag: object-detection' in card
  assert '| test box AP | 45.67% |' in card
  assert 'type: mean_average_precision' in card


def test_half_precision_and_what_it_loses(tmp_path):
  found, said = tiny_detectors.weights('retina'), io.StringIO()
  form, params = 'safetensors-float16', found.variables['params']
  boxes = params['head']['boxes']
  boxes |= {name: np.full_like(array, 1e-6) for name, array in boxes.items()}
  path = export.export(found, form, tmp_path / 'small', Terminal(said))
  assert 'arrays differ by ' in said.getvalue()
  want = jax.tree.map(lambda x: np.float32(np.float16(x)), params)
  _equal(load.load(path).variables['params'], want)
  # float16 rounds these to 0.
  boxes |= {name: array * 1e-3 for name, array in boxes.items()}
  with pytest.raises(UserError, match='arrays that differ by'):
    export.export(found, form, tmp_path / 'out', Terminal(said))
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    ('name', 'head', 'sizes'),
    [
        ('rmt_s', 'retina', {'channels': 256, 'tower_depth': 4}),
        ('rmt_t', 'mask', {'linear_channels': 1024, 'rpn_channels': 256}),
        ('rmt_b', 'cascade', {'conv_channels': 256, 'mask_channels': 256}),
    ],
)
def test_the_released_detectors_are_recognised(name, head, sizes):
  model = create_detector(name, head=head)
  arrays = released_rmt.zeros(model)
  parallel = {f'module.{key}': array for key, array in arrays.items()}
  _, inside, others = rmt_checkpoint.unwrap({'state_dict': parallel})
  assert not others
  found = rmt_checkpoint.recognise(inside)
  assert (found.name, found.num_classes) == (name, 80)
  assert found.dense.items() >= {'head': head, **sizes}.items()
  assert found.make_model() == model.clone(round_extents=32)


def test_what_is_missing_or_left_over_is_named(tmp_path):
  arrays = _state_dict('cascade')
  del arrays['roi_head.bbox_head.1.shared_convs.2.bn.running_var']
  arrays['roi_head.bbox_head.3.fc_cls.weight'] = np.zeros(3, np.float32)
  arrays['backbone.more'] = np.zeros(3, np.float32)
  said = io.StringIO()
  path = _saved(tmp_path / 'a.pth', arrays)
  with pytest.raises(UserError, match='1 arrays missing, 1 that differ'):
    convert.convert(
        path, tmp_path / 'out', full_stages=(3, 4), terminal=Terminal(said)
    )
  lines = said.getvalue().splitlines()
  assert 'missing: roi_head.bbox_head.1.shared_convs.2.bn.running_var' in lines
  assert 'unexpected: backbone.more' in lines
  differing = 'differs: roi_head.bbox_head.3.fc_cls.weight: the model has no'
  assert any(line.startswith(differing) for line in lines)
  assert not (tmp_path / 'out').exists()


def test_retinanets_classes_are_whole():
  arrays = _state_dict('retina')
  name = 'bbox_head.retina_cls.weight'
  arrays[name] = arrays[name][:-1]
  with pytest.raises(UserError, match='its arrays have other shapes'):
    rmt_checkpoint.recognise(arrays, full_stages=(3, 4))


def test_classifiers_and_detectors_start_one_another():
  detector = tiny_detectors.weights('mask')
  classifier = create_model(
      'rmt_t', num_classes=5, **tiny_detectors.BACKBONE, projection=12
  )
  new = random_variables.nested(classifier, (1, 32, 32, 3))
  zeros = jax.tree.map(np.zeros_like, new)
  fine_tuning.check(zeros, detector)
  merged, said = fine_tuning.transfer(zeros, detector.variables)
  flat = traverse_util.flatten_dict(detector.variables, sep='/')
  found = traverse_util.flatten_dict(merged, sep='/')
  for name, array in found.items():
    kind, _, inside = name.partition('/')
    own = flat.get(f'{kind}/backbone/{inside}', np.zeros_like(array))
    np.testing.assert_array_equal(array, own, err_msg=name)
  assert any('not used: ' in line for line in said)

  zeros = jax.tree.map(np.zeros_like, detector.variables)
  merged, _ = fine_tuning.transfer(zeros, new)
  found = traverse_util.flatten_dict(merged, sep='/')
  old = traverse_util.flatten_dict(new, sep='/')
  for name, array in found.items():
    own = old.get(name.replace('/backbone', '', 1), np.zeros_like(array))
    np.testing.assert_array_equal(array, own, err_msg=name)
  assert found['params/backbone/stage1/block00/ffn/up/kernel'].any()
