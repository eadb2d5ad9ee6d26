"""Tests segmenters in PyTorch files: conversion, loading, refusal, names."""

import dataclasses
import functools
import io
import json

from flax import traverse_util
import jax
import numpy as np
import pytest
import random_variables
import released_rmt
import seg_heads

from gswinrmt_jax import recipes, weights
from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import convert, export
from gswinrmt_jax.deploy.segmenter import LoadedSegmenter
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense.segmenter import create_segmenter, TITLES
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import fine_tuning
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import load, rmt_checkpoint, torch_file

_HEADS = ('fpn', 'uper')


@functools.cache
def _state_dict(head):
  """Returns random backbone weights with mmsegmentation's head weights."""
  model = seg_heads.model(head, dtype='float32')
  variables = random_variables.nested(model, (1, 32, 32, 3))
  found = weights.to_torch_state_dict(variables, model)
  heads = seg_heads.state_dict(head)
  # The heads' file lacks the counters of BN.
  named = {key for key in found if not key.endswith('num_batches_tracked')}
  assert heads.keys() == {k for k in named if not k.startswith('backbone.')}
  return found | {key: np.float32(array) for key, array in heads.items()}


def _saved(path, state_dict):
  """Writes a checkpoint as mmsegmentation does."""
  contents = {
      # mmsegmentation's names of ADE20K have such a blank, too.
      'meta': {'epoch': 1, 'iter': 80_000, 'CLASSES': ['wall', 'sky ']},
      'state_dict': state_dict,
      'optimizer': {'state': {0: {'step': 3, 'exp_avg': np.float32([1, 2])}}},
  }
  torch_file.write(path, contents)
  return path


def _converted(source, out):
  said = io.StringIO()
  convert.convert(source, out, full_stages=(3, 4), terminal=Terminal(said))
  return said.getvalue()


@pytest.fixture(name='folders', scope='module')
def _folders(tmp_path_factory):
  """Returns `{head: folder}` and `{head: what the conversion printed}`."""
  place, said = tmp_path_factory.mktemp('segmenters'), {}
  for head in _HEADS:
    source = _saved(place / f'{head}.pth', _state_dict(head))
    said[head] = _converted(source, place / head)
  return {head: place / head for head in _HEADS}, said


@pytest.mark.parametrize('head', _HEADS)
def test_a_converted_segmenter(head, folders):
  """Its classes and channels, every array, and mmsegmentation's logits."""
  folders, said = folders
  found = load.load(folders[head])
  model, want = found.card.make_model(), seg_heads.model(head)
  for field in (
      'decoder',
      'num_classes',
      'channels',
      'neck_channels',
      'auxiliary_channels',
  ):
    assert getattr(model, field) == getattr(want, field), field
  assert model.arch.feature_norm and model.arch.widths == want.arch.widths
  assert found.card.image_size == (512, 512) and not found.card.class_names
  title = {'fpn': 'Semantic FPN', 'uper': 'UperNet'}[head]
  classes = seg_heads.config()['classes']
  assert ', entry state_dict: rmt_t with widths 6 10' in said[head]
  assert f', {title}, {classes} classes\n' in said[head]
  assert 'unexpected' not in said[head] and 'left out' not in said[head]

  state_dict = _state_dict(head)
  back = weights.to_torch_state_dict(found.variables, model)
  assert back.keys() == state_dict.keys()
  for key, array in back.items():
    if 'Relpos' not in key and 'num_batches' not in key:
      np.testing.assert_array_equal(array, state_dict[key], err_msg=key)

  decode = functools.partial(model.apply, train=False, method='decode')
  want = seg_heads.arrays()
  maps = [np.float32(want[f'b/map{level}']) for level in range(4)]
  logits = jax.jit(decode)(found.variables, maps)
  seg_heads.compare(logits, want[f'b/{head}/logits'], head, within=5e-5)


@pytest.mark.parametrize('odd', [None, 7])
def test_mmsegmentations_class_names_are_kept(odd, tmp_path):
  names = [f'thing {k}' for k in range(seg_heads.config()['classes'])]
  names[-1] = odd or names[-1]
  contents = {'meta': {'CLASSES': names}, 'state_dict': _state_dict('fpn')}
  torch_file.write(tmp_path / 'a.pth', contents)
  _converted(tmp_path / 'a.pth', tmp_path / 'out')
  card = load.load(tmp_path / 'out').card
  assert card.class_names == (() if odd else tuple(names))


def test_a_pytorch_file_is_loaded_as_it_is(folders, tmp_path):
  """The card next to it says what its arrays do not."""
  folder = folders[0]['uper']
  (tmp_path / 'config.json').write_bytes((folder / 'config.json').read_bytes())
  found = load.load(_saved(tmp_path / 'a.pth', _state_dict('uper')))
  assert found.card.make_model() == load.load(folder).card.make_model()


@pytest.mark.parametrize('head', _HEADS)
def test_the_released_segmenters_are_recognised(head):
  model = create_segmenter('rmt_s', head=head, num_classes=150)
  arrays = released_rmt.zeros(model)
  parallel = {f'module.{name}': array for name, array in arrays.items()}
  where, inside, others = rmt_checkpoint.unwrap({'state_dict': parallel})
  assert (where, others) == ('state_dict', [])
  assert inside.keys() == arrays.keys()
  sizes = {
      'fpn': (128, 256, 0),
      'uper': (512, 0, 256),
  }[head]
  names = ('channels', 'neck_channels', 'auxiliary_channels')
  entry = {'head': head, **dict(zip(names, sizes, strict=True))}
  found = rmt_checkpoint.recognise(inside)
  assert (found.name, found.num_classes) == ('rmt_s', 150)
  assert found.fields == factory.resolve('rmt_s', {'feature_norm': True})
  assert found.dense == entry


def test_without_an_auxiliary_head():
  """Only training uses it, so files for inference may omit it."""
  arrays = {
      name: array
      for name, array in _state_dict('uper').items()
      if not name.startswith('auxiliary_head')
  }
  found = rmt_checkpoint.recognise(arrays, full_stages=(3, 4))
  assert found.dense['auxiliary_channels'] == 0


def test_a_thousand_classes_of_pixels_are_not_imagenets():
  arrays = dict(_state_dict('fpn'))
  name = 'decode_head.conv_seg.weight'
  arrays[name] = np.zeros((1000, *arrays[name].shape[1:]))
  card = rmt_checkpoint.recognise(arrays, full_stages=(3, 4))
  assert card.num_classes == 1000 and not card.class_names
  classifier = {'head.weight': np.zeros((1000, 3))} | {
      name.removeprefix('backbone.'): array for name, array in arrays.items()
  }
  del classifier['decode_head.scale_heads.0.0.conv.weight']
  card = rmt_checkpoint.recognise(classifier, full_stages=(3, 4))
  assert len(card.class_names) == card.num_classes == 1000


def test_segmentation_maps_hold_256_classes(folders):
  found = load.load(folders[0]['uper'])
  many = dataclasses.replace(
      found, card=dataclasses.replace(found.card, num_classes=257)
  )
  loaded = LoadedSegmenter(many)
  with pytest.raises(
      UserError, match='257 classes, and segmentation maps hold 256: '
  ):
    loaded.predict(np.zeros((32, 32, 3), np.uint8))


@pytest.mark.parametrize(
    'name', ['decode_head.psp_modules.4.1.conv.weight', 'neck.norm.weight']
)
def test_one_more_layer_in_a_head_is_another_model(name, tmp_path):
  head = 'uper' if 'psp' in name else 'fpn'
  arrays = {**_state_dict(head), name: np.zeros(3, np.float32)}
  path = _saved(tmp_path / 'a.pth', arrays)
  with pytest.raises(UserError, match='0 arrays missing, 1 that differ'):
    _converted(path, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    ('key', 'array', 'said'),
    [
        ('decode_head.conv_seg.weight', None, 'has no .decode_head.conv_seg'),
        ('decode_head.conv_seg.weight', np.zeros(3), 'have other shapes'),
    ],
)
def test_odd_heads_are_one_line(key, array, said):
  arrays = {**_state_dict('fpn'), key: array}
  if array is None:
    del arrays[key]
  with pytest.raises(UserError, match=f'is not an RMT: .*{said}'):
    rmt_checkpoint.recognise(arrays, full_stages=(3, 4))


def test_a_detector_gives_its_backbone(tmp_path):
  others = ['neck.lateral_convs.0.conv.weight', 'rpn_head.rpn_cls.\x1b[2J']
  arrays = {
      key: array
      for key, array in _state_dict('fpn').items()
      if key.startswith('backbone.')
  } | dict.fromkeys(others, np.zeros(3, np.float32))
  said = _converted(_saved(tmp_path / 'a.pth', arrays), tmp_path / 'out')
  assert ', no head\n' in said
  assert f'left out: {others[0]}\nleft out: rpn_head.rpn_cls.\\x1b[2J' in said
  found = load.load(tmp_path / 'out')
  assert found.card.dense is None and found.card.num_classes == 0
  flat = traverse_util.flatten_dict(dict(found.variables), sep='/')
  np.testing.assert_array_equal(
      flat['params/feature_norm2/bias'],
      arrays['backbone.extra_norms.1.bias'],
  )


def test_segmenters_are_refused_where_classifiers_are_needed(
    folders, tmp_path, capsys
):
  folder = str(folders[0]['fpn'])
  maps = str(tmp_path / 'a')
  for arguments, said in (
      (['predict', folder, 'a.png', '--maps=x'], '--maps is for classifiers'),
      (['predict', folder, 'a.png', '--top=2'], '--top is for classifiers'),
      (
          ['predict', 'digits_small', 'a.png', f'--out={maps}'],
          'must end in .csv',
      ),
      (['evaluate', folder, '--data=digits'], 'has 5 classes, digits has 10'),
      (['analyze', folder, '--data=digits'], 'only classifiers are accepted'),
  ):
    assert main.main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert '\n' not in error
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('head', _HEADS)
def test_an_exported_segmenter_is_converted_to_itself(head, folders, tmp_path):
  """Bit for bit, under mmsegmentation's names, with and without its card."""
  source = load.load(folders[0][head])
  # With class names, and another size of images.
  names = tuple(f'class {i}' for i in range(source.card.num_classes))
  card = dataclasses.replace(
      source.card, image_size=(40, 33), class_names=names
  )
  source = dataclasses.replace(source, card=card)
  said = io.StringIO()
  path = export.export(source, 'torch', tmp_path / 'a', Terminal(said))
  if head == 'fpn':
    assert "arrays differ by 0 from the model's own" in said.getvalue()
  state_dict = torch_file.read(path)['state_dict']
  assert state_dict.keys() == _state_dict(head).keys()
  readme = (tmp_path / 'a' / 'README.md').read_text()
  assert 'pipeline_tag: image-segmentation' in readme
  classes = f'{card.num_classes} classes of pixels'
  assert f'; {TITLES[head]}, {classes}, for RGB images of any size' in readme

  with_card = _converted(path, tmp_path / 'b')
  path.with_name('config.json').unlink()
  without = _converted(path, tmp_path / 'c')
  assert with_card.splitlines()[0] == without.splitlines()[0]
  for folder, class_names in (('b', names), ('c', ())):
    found = load.load(tmp_path / folder)
    assert found.card.dense == card.dense
    assert found.size() == (2048, 512)
    assert found.card.class_names == class_names
    jax.tree.map(
        np.testing.assert_array_equal,
        found.variables,
        dict(source.variables),
    )


@pytest.mark.parametrize('bounds', [(240, 180), None])
def test_the_card_of_a_run_has_the_size_of_its_images(bounds, tmp_path):
  """Exported weights then resize images as the run does."""
  config = recipes.segmentation('rmt_compact', 'fpn')
  config.data.name, config.data.crop_size = 'digit_masks', (32, 32)
  config.data.fit_within = bounds or (0, 0)
  card = load.run_card(tmp_path, recipes.resolve(config))
  written = json.loads(json.dumps(card.to_dict()))
  for one in (card, card_lib.from_dict(written, 'there')):
    found = load.Weights({}, one, 'there', tmp_path)
    assert found.size() == bounds
    assert found.size(9) == (36, 9)


def test_wrong_bounds_of_a_card_are_one_line(folders):
  written = load.load(folders[0]['fpn']).card.to_dict()
  assert written['fit_within'] == (2048, 512)
  for wrong in (512, [512], [512, 0], [512.5, 512], ['a', 'b']):
    with pytest.raises(UserError, match='there: '):
      card_lib.from_dict({**written, 'fit_within': wrong}, 'there')
  del written['fit_within']
  with pytest.raises(UserError, match="there has no 'fit_within'"):
    card_lib.from_dict(written, 'there')


def test_a_classifier_starts_from_a_segmenters_backbone(folders):
  """If it is most of the classifier; here a projection may be more."""
  found = load.load(folders[0]['fpn'])
  card = dataclasses.replace(found.card, dense=None, num_classes=3)

  def target(projection):
    fields = card.fields | {'feature_norm': False, 'projection': projection}
    classifier = dataclasses.replace(card, fields=fields).make_model()
    return factory.variable_shapes(classifier, (32, 32, 3))

  fine_tuning.check(target(8), found)
  with pytest.raises(UserError, match='for another model: only 39% of the'):
    fine_tuning.check(target(1024), found)
