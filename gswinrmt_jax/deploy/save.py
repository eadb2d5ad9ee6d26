"""Saves the model of a train loop of one's own as weights to load."""

from collections.abc import Mapping, Sequence
import dataclasses
import io
import os
import pathlib
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.deploy import export
from gswinrmt_jax.models import named
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.models.dense import detector, rcnn, segmenter
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import load
from gswinrmt_jax.weights.card import Card


def save_model(
    folder: str | os.PathLike[str],
    model: nn.Module,
    variables: Mapping[str, Any],
    *,
    image_size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str] = (),
    crop: float = 1.0,
    fit_within: tuple[int, int] | None = None,
) -> pathlib.Path:
  """Saves a model, with what it needs to predict, for `load_model`.

      save_model('weights/pets', model, variables, image_size=(224, 224),
                 mean=info.mean, std=info.std, class_names=info.class_names)
      load_model('weights/pets').predict('cat.jpg')

  The folder has `model.safetensors`, `config.json` and a model card. Every
  command takes it, too. The file is read back and compared with the model.

  Args:
    folder: The folder, which is created, or has been written by this function.
    model: From `create_model`, `create_segmenter` or `create_detector`.
    variables: `{'params', 'batch_stats'}`. Float64 is rounded to float32.
    image_size: Height and width of the images that it was trained on, in
      pixels.
    mean: Mean per channel, from 0 to 1, which is subtracted from pixels / 255.
    std: Standard deviation per channel, by which the result is divided.
    class_names: Class names by label.
    crop: Share of the resized image that is kept along each side; 0 if images
      are squeezed to `image_size`.
    fit_within: For a segmenter or detector, bounds of the longer and the
      shorter side that images are resized to fit, in pixels; None keeps their
      size.

  Returns:
    The path of `model.safetensors`.

  Raises:
    ValueError: If another function made the model or it was changed since,
      variables are not those of the model or not finite, or a value is invalid.
    UserError: If the model does not take images of `image_size` or computes in
      float64, or the folder holds other files or cannot be written.
  """
  folder, dense = pathlib.Path(folder).expanduser(), _dense_fields(model)
  if fit_within is not None and not dense:
    raise ValueError('fit_within is for segmenters and detectors')
  if crop != 1.0 and dense:
    raise ValueError('crop is for classifiers')
  if isinstance(class_names, str):
    raise ValueError(
        f'class_names is {class_names!r:.80}: must be a list of names'
    )
  own = model.head if isinstance(model, detector.Detector) else model
  card = Card(
      name=_nearest_name(model.arch),
      fields=dataclasses.asdict(model.arch),
      num_classes=own.num_classes,
      dense=dense,
      class_names=tuple(class_names),
      image_size=tuple(np.asarray(image_size).tolist()),
      mean=tuple(map(float, mean)),
      std=tuple(map(float, std)),
      crop=float(crop),
      fit_within=fit_within,
      dtype=jnp.dtype(model.dtype).name,
  )
  if _for_inference(card.make_model()) != _for_inference(model):
    raise ValueError(
        'load_model would make another model: a class or value of this one has '
        'no place in config.json'
    )
  _check_variables(variables, card)
  variables = jax.tree.map(_single, variables)
  weights = load.Weights(variables, card, str(folder), folder)
  return export.export(weights, 'safetensors', folder, Terminal(io.StringIO()))


def _for_inference(model):
  """Returns a model without what matters in training alone."""
  if isinstance(model, Backbone):
    return model.clone(remat='none')
  changes = {'backbone': model.backbone.clone(remat='none')}
  if isinstance(model, segmenter.Segmenter):
    changes['dropout_rate'] = 0.0
  return model.clone(**changes)


def _dense_fields(model):
  """Returns the arguments that define a dense head; None for a classifier."""
  if isinstance(model, Backbone):
    return None
  if isinstance(model, segmenter.Segmenter):
    return {'head': model.decoder} | {
        name: getattr(model, name) for name in segmenter.HEADS[model.decoder]
    }
  if not isinstance(model, detector.Detector):
    raise ValueError(
        f'a {type(model).__name__} is no model of create_model, '
        'create_segmenter or create_detector'
    )
  head = 'retina'
  if isinstance(model.head, rcnn.RCNN):
    head = 'cascade' if model.head.is_cascade else 'mask'
  return {'head': head, 'round_extents': model.round_extents} | {
      name: getattr(model.head, name) for name in detector.head_fields(head)
  }


def _nearest_name(arch: Architecture) -> str:
  """Returns the model that an architecture differs from in fewest fields."""

  def changes(name):
    original = dataclasses.asdict(named.MODELS[name])
    return sum(
        value != original[field]
        for field, value in dataclasses.asdict(arch).items()
    )

  return min(sorted(named.MODELS), key=changes)


def _single(array):
  """Rounds float64; other arrays stay."""
  return np.float32(array) if array.dtype == np.float64 else array


def _check_variables(variables, card):
  """Refuses variables that are not the model's, or not finite."""
  flat = traverse_util.flatten_dict(dict(variables), sep='/')
  if differing := load.differing_arrays(flat, card):
    raise ValueError(f'variables are not those of the model: {differing}')
  if broken := load.not_finite(variables):
    raise ValueError(f'variables are not finite, in {broken}')
