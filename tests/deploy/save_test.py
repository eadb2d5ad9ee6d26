"""Tests that a model of one's own train loop is loaded as it was saved."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

import gswinrmt_jax
from gswinrmt_jax.deploy import export
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import backbone, factory
from gswinrmt_jax.weights import card as card_lib

_SIZES = {
    'widths': (4, 4, 8, 8),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 2, 2),
    'mlp_ratios': (2.0, 2.0, 2.0, 2.0),
}
_HOW = {
    'image_size': np.array([32, 48]),
    'mean': np.float32([0.25, 0.5, 0.75]),
    'std': (0.25, 0.25, 0.5),
}


def _classifier(**fields):
  sizes = {name: values[1:3] for name, values in _SIZES.items()}
  sizes |= {'layer_scale': (0.5, 0.5), 'decay_ranges': (4.0, 4.0)}
  return gswinrmt_jax.create_model(
      'swat_compact', num_classes=np.int64(3), **sizes | fields
  )


def _variables(model):
  return random_variables.nested(model, (1, 64, 64, 3))


def test_values_of_numpy_are_saved(tmp_path):
  model = _classifier()
  variables = _variables(model)
  thirds = jax.tree.map(lambda x: np.float64(x) / 3, variables)
  gswinrmt_jax.save_model(
      tmp_path, model, thirds, crop=np.float32(0.875), **_HOW
  )
  loaded = gswinrmt_jax.load_model(tmp_path)
  assert loaded.card.crop == 0.875
  jax.tree.map(
      np.testing.assert_array_equal,
      loaded.variables,
      jax.tree.map(np.float32, thirds),
  )


def test_a_classifier_predicts_as_it_was_trained(tmp_path):
  model = _classifier(window_size=np.int64(3))
  variables = _variables(model)
  path = gswinrmt_jax.save_model(
      str(tmp_path / 'a'), model, variables, class_names=['x', 'y', 'z'], **_HOW
  )
  assert path == tmp_path / 'a' / 'model.safetensors'
  loaded = gswinrmt_jax.load_model(tmp_path / 'a')
  assert loaded.model == model and loaded.class_names == ('x', 'y', 'z')
  assert loaded.card.name.startswith('swat_') and loaded.card.crop == 1
  jax.tree.map(np.testing.assert_array_equal, loaded.variables, variables)
  pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
  image = (pixels / np.float32(255) - _HOW['mean']) / np.float32(_HOW['std'])
  apply = jax.jit(functools.partial(model.apply, train=False))
  expected = apply(variables, jnp.asarray(image)[None])
  np.testing.assert_allclose(loaded.logits(pixels), expected, rtol=1e-4)


@pytest.mark.parametrize('head', ['fpn', 'uper', 'retina', 'mask', 'cascade'])
def test_the_card_of_a_dense_model_makes_it_again(head, tmp_path, monkeypatch):
  monkeypatch.setattr(export, 'export', lambda weights, *_: weights)
  if head in ('fpn', 'uper'):
    model = gswinrmt_jax.create_segmenter(
        'rmt_t', head=head, num_classes=3, channels=np.int64(4), **_SIZES
    )
  else:
    model = gswinrmt_jax.create_detector(
        'rmt_t', head=head, num_classes=3, channels=4, detections=7, **_SIZES
    )
  shapes = factory.variable_shapes(model)
  variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes)
  weights = gswinrmt_jax.save_model(
      tmp_path / 'a', model, variables, fit_within=(96, 48), **_HOW
  )
  written = json.loads(json.dumps(weights.card.to_dict()))
  card = card_lib.from_dict(written, 'config.json')
  assert card.make_model() == model and card.fit_within == (96, 48)


def test_what_does_not_belong_together_is_refused(tmp_path):
  model = _classifier()
  other = _variables(_classifier(ffn_conv=False, ffn_norm=False))
  with pytest.raises(ValueError, match=r'not those of the model: .*/bias'):
    gswinrmt_jax.save_model(tmp_path / 'a', model, other, **_HOW)
  with pytest.raises(ValueError, match='not those of the model: '):
    gswinrmt_jax.save_model(tmp_path / 'a', model, other['params'], **_HOW)
  with pytest.raises(ValueError, match='2 names for 3 classes'):
    gswinrmt_jax.save_model(
        tmp_path / 'a', model, other, class_names=('a', 'b'), **_HOW
    )
  with pytest.raises(ValueError, match='fit_within is for segmenters and'):
    gswinrmt_jax.save_model(
        tmp_path / 'a', model, other, fit_within=(96, 48), **_HOW
    )
  with pytest.raises(ValueError, match=r'image_size .* must be 2 whole'):
    gswinrmt_jax.save_model(
        tmp_path / 'a', model, other, **_HOW | {'image_size': (32.0, 48.0)}
    )
  with pytest.raises(ValueError, match="class_names is 'abc': must be "):
    gswinrmt_jax.save_model(
        tmp_path / 'a', model, other, **_HOW | {'class_names': 'abc'}
    )
  with pytest.raises(ValueError, match='a Dense is no model of create_model'):
    from flax import linen

    gswinrmt_jax.save_model(tmp_path / 'a', linen.Dense(3), other, **_HOW)
  broken = jax.tree.map(lambda x: x * np.nan, _variables(model))
  with pytest.raises(ValueError, match='variables are not finite, in '):
    gswinrmt_jax.save_model(tmp_path / 'a', model, broken, **_HOW)
  assert not (tmp_path / 'a').exists()
  (tmp_path / 'config.json').write_text('{}')
  with pytest.raises(UserError, match=r'config\.json was not written by'):
    gswinrmt_jax.save_model(tmp_path, model, _variables(model), **_HOW)


class _Other(backbone.Backbone):
  """A model with an equation of its own, and the arrays of a classifier."""


def _of_other_stages():
  detector = gswinrmt_jax.create_detector(
      'rmt_t', head='cascade', num_classes=3, channels=4
  )
  stages = [stage._replace(stds=(1.0,) * 4) for stage in detector.head.stages]
  return detector.clone(head=detector.head.clone(stages=tuple(stages)))


@pytest.mark.parametrize(
    'make',
    [
        lambda: _Other(_classifier().arch, 3, jnp.float32),
        _of_other_stages,
    ],
)
def test_a_model_that_would_not_be_loaded_is_refused(make, tmp_path):
  """Its arrays alone do not say so."""
  with pytest.raises(ValueError, match='load_model would make another model'):
    gswinrmt_jax.save_model(tmp_path / 'a', make(), {}, **_HOW)


def test_the_crop_of_a_dense_model_is_refused(tmp_path):
  model = gswinrmt_jax.create_segmenter('rmt_t', head='fpn', num_classes=3)
  with pytest.raises(ValueError, match='crop is for classifiers'):
    gswinrmt_jax.save_model(tmp_path / 'a', model, {}, crop=0.9, **_HOW)
