"""The `config.json` of weights: model, classes and preprocessing.

The keys are those of timm's files on model hubs.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import gswinrmt_jax
from gswinrmt_jax import files, recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.models.dense import create
from gswinrmt_jax.models.dense.detector import Detector
from gswinrmt_jax.models.dense.segmenter import Segmenter
from gswinrmt_jax.terminal import printable

FILE = 'config.json'
_LIBRARY = 'gswinrmt_jax'
# In pixels. A model may hold a number for each pair of its tokens, so that
# memory increases with the fourth power of the side.
_LARGEST_SIDE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
  """Everything needed to use weights.

  Attributes:
    name: Name of the model.
    fields: Value of every field of its `Architecture`.
    num_classes: Number of logits; 0 for a backbone without a head.
    dense: The arguments of `create_segmenter` or `create_detector` that define
      the head; None for a classifier.
    class_names: Class names by label; empty if unknown.
    image_size: Height and width that the weights were trained for.
    mean: Mean per channel, subtracted from pixels / 255.
    std: Standard deviation per channel, by which the result is divided.
    crop: Fraction of the resized image that evaluation keeps along each side;
      0 if images are resized to `image_size`, ignoring aspect ratio.
    fit_within: For a segmenter or detector, bounds of the longer and the
      shorter side that images are resized to fit, in pixels; None keeps their
      size.
    dtype: Computation dtype of training.
    figures: The run's summary, with the checkpoint of these weights.

  Raises:
    ValueError: If a number is not whole or too large, the number of class names
      is wrong, or images cannot be preprocessed with these values.
  """

  name: str
  fields: Mapping[str, Any]
  num_classes: int
  dense: Mapping[str, Any] | None = None
  class_names: tuple[str, ...] = ()
  image_size: tuple[int, int]
  mean: tuple[float, float, float]
  std: tuple[float, float, float]
  crop: float = 1.0
  fit_within: tuple[int, int] | None = None
  dtype: str = 'float32'
  figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    names, bounds = self.class_names, self.fit_within
    datasets.Info(self.name, names, self.mean, self.std, self.image_size)
    if not isinstance(self.num_classes, int):
      raise ValueError(
          f'num_classes {self.num_classes!r:.80} must be a whole number'
      )
    if names and len(names) != self.num_classes:
      raise ValueError(f'{len(names)} names for {self.num_classes} classes')
    # Bounds image_size / crop, the size that images are resized to.
    if self.crop and not 0.1 <= self.crop <= 1:
      raise ValueError(f'crop {self.crop} must be 0, or from 0.1 to 1')
    most = 4 * _LARGEST_SIDE
    if bounds is not None and not (
        len(bounds) == 2
        and all(isinstance(side, int) and 0 < side <= most for side in bounds)
    ):
      raise ValueError(
          f'fit_within {bounds!r:.80} must be 2 whole numbers, 1 to {most:,}'
      )
    if not isinstance(self.figures, Mapping):
      raise ValueError(f'figures {self.figures!r:.80} must be a dictionary')

  @property
  def _largest_side(self):
    # Of images within bounds, usually the longer side is four times the other.
    return _LARGEST_SIDE * (4 if self.task != 'classification' else 1)

  @property
  def task(self) -> str:
    """'classification', 'segmentation' or 'detection'."""
    return create.task(self.dense)

  def make_model(
      self, image_size: tuple[int, int] | None = None, dtype: str | None = None
  ) -> Backbone | Segmenter | Detector:
    """Returns the model; image size and dtype default to those of the card.

    Raises:
      UserError: If there is no such model, or it does not take images of this
        height and width.
    """
    try:
      model = create.create(
          self.name,
          self.dense,
          num_classes=self.num_classes,
          dtype=dtype or self.dtype,
          **self.fields,
      )
    except (TypeError, ValueError) as error:
      raise UserError(f'{self.name}: {error}') from error
    least = model.arch.stride
    height, width = image_size or self.image_size
    if min(height, width) < least:
      raise UserError(
          f'{self.name}: images must be at least {least}x{least} pixels, not '
          f'{height}x{width}'
      )
    if max(height, width) > self._largest_side:
      raise UserError(
          f'{self.name}: images of {height}x{width} pixels are too large: a '
          f'side is at most {self._largest_side:,} pixels'
      )
    return model

  def variable_shapes(self) -> dict[str, Any]:
    """Returns the shapes of the model's variables.

    Raises:
      UserError: As in `make_model`.
    """
    return factory.variable_shapes(self.make_model())

  def class_name(self, label: int) -> str:
    """Returns a printable class name; 'class 7' if names are unknown."""
    if not self.class_names:
      return f'class {label}'
    return printable(self.class_names[label])

  def crop_at(self, image_size: tuple[int, int]) -> float:
    """Returns the crop at another image size.

    Above the card's size, no margin is cut off: training at the card's size
    makes objects appear larger than in evaluation. An image is still cropped
    to the aspect ratio of `image_size`.
    """
    larger = min(image_size) > min(self.image_size)
    return 1.0 if self.crop and larger else self.crop

  def to_dict(self) -> dict[str, Any]:
    """Returns the contents of `config.json`."""
    entries = {}
    resized = {
        'crop_pct': self.crop or 1.0,
        'crop_mode': 'center' if self.crop else 'squash',
        'interpolation': 'bicubic',
    }
    if self.dense is not None:
      section = recipes.SECTIONS[self.task]
      entries = {section: dict(self.dense), 'fit_within': self.fit_within}
      resized = {'interpolation': 'bilinear'}
    return {
        'library_name': _LIBRARY,
        'library_version': gswinrmt_jax.__version__,
        'architecture': self.name,
        'num_classes': self.num_classes,
        'dtype': self.dtype,
        'model_args': dict(self.fields),
        **entries,
        'pretrained_cfg': {
            'input_size': [3, *self.image_size],
            'mean': list(self.mean),
            'std': list(self.std),
            **resized,
            'label_names': list(self.class_names),
        },
        'figures': dict(self.figures),
    }


def read(path: pathlib.Path) -> Card | None:
  """Returns the card in a `config.json`.

  Returns None if the file is missing or belongs to a run or another library.

  Raises:
    UserError: If the file is damaged.
  """
  try:
    fields = files.read_json(path)
  except FileNotFoundError:
    return None
  if not isinstance(fields, dict) or fields.get('library_name') != _LIBRARY:
    return None
  return from_dict(fields, str(path))


def from_dict(fields: Mapping[str, Any], where: str) -> Card:
  """Returns the card that `to_dict` wrote; messages name the file `where`.

  Raises:
    UserError: If a key is missing or a value is invalid.
  """
  try:
    images = fields['pretrained_cfg']
    squashed = images.get('crop_mode') == 'squash'
    heads = map(fields.get, recipes.SECTIONS.values())
    dense = next((head for head in heads if head is not None), None)
    bounds = None if dense is None else fields['fit_within']
    card = Card(
        name=fields['architecture'],
        fields=dict(fields['model_args']),
        num_classes=fields['num_classes'],
        dense=dense,
        class_names=tuple(images.get('label_names') or ()),
        image_size=tuple(images['input_size'][1:]),
        mean=tuple(map(float, images['mean'])),
        std=tuple(map(float, images['std'])),
        crop=0.0 if squashed else float(images.get('crop_pct', 1.0)),
        fit_within=None if bounds is None else tuple(bounds),
        dtype=fields.get('dtype', 'float32'),
        figures=fields.get('figures', {}),
    )
    card.make_model()
  except KeyError as error:
    raise UserError(f'{where} has no {error}') from error
  except (
      TypeError,
      ValueError,
      AttributeError,
      OverflowError,
      UserError,
  ) as error:
    raise UserError(f'{where}: {error}') from error
  return card
