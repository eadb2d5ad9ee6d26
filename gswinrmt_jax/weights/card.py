"""The `config.json` beside weights: which model they are for, on what images.

The keys are those of timm's files on model hubs.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import gswinrmt_jax
from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.backbone import Backbone

FILE = 'config.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
  """What somebody needs to use weights.

  Attributes:
    name: The named model.
    fields: Every field of its `Architecture`.
    num_classes: Number of logits; 0 for a backbone without a head.
    class_names: By label; empty where nobody said.
    image_size: Height and width that the weights were made for.
    mean: Of the channels of pixels / 255, taken off them.
    std: What the channels are divided by.
    crop: Part of the resized image that evaluation keeps, along a side; 0 where
      images are squeezed to the size, whatever their shape.
    dtype: Computation dtype that the weights were made with.
    figures: Measured results, by name.
  """

  name: str
  fields: Mapping[str, Any]
  num_classes: int
  class_names: tuple[str, ...] = ()
  image_size: tuple[int, int]
  mean: tuple[float, float, float]
  std: tuple[float, float, float]
  crop: float = 1.0
  dtype: str = 'float32'
  figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def make_model(self, dtype: str | None = None) -> Backbone:
    """Returns the model.

    Args:
      dtype: Computation dtype; None takes the card's.

    Raises:
      ValueError: If there is no such model.
    """
    return factory.create_model(
        self.name,
        num_classes=self.num_classes,
        dtype=dtype or self.dtype,
        **self.fields,
    )

  def crop_at(self, image_size: tuple[int, int]) -> float:
    """Returns the crop at another image size.

    Above the card's size no margin is cut off, since training at the card's
    makes things appear larger than they are in evaluation; what makes an image
    longer than it is wide still is.

    Args:
      image_size: Height and width.
    """
    larger = min(image_size) > min(self.image_size)
    return 1.0 if self.crop and larger else self.crop

  def to_dict(self) -> dict[str, Any]:
    """Returns what is written, as JSON values."""
    return {
        'library_name': 'gswinrmt_jax',
        'library_version': gswinrmt_jax.__version__,
        'architecture': self.name,
        'num_classes': self.num_classes,
        'dtype': self.dtype,
        'model_args': dict(self.fields),
        'pretrained_cfg': {
            'input_size': [3, *self.image_size],
            'mean': list(self.mean),
            'std': list(self.std),
            'crop_pct': self.crop or 1.0,
            'crop_mode': 'center' if self.crop else 'squash',
            'interpolation': 'bicubic',
            'label_names': list(self.class_names),
        },
        'figures': dict(self.figures),
    }


def is_card(fields: Mapping[str, Any]) -> bool:
  """Tells a card from another `config.json`, such as a run's recipe."""
  return fields.get('library_name') == 'gswinrmt_jax'


def from_dict(fields: Mapping[str, Any], where: str) -> Card:
  """Returns the card that `to_dict` made.

  Args:
    fields: The JSON.
    where: Its file, for the message.

  Raises:
    UserError: If something is missing or of the wrong kind.
  """
  try:
    images = fields['pretrained_cfg']
    card = Card(
        name=fields['architecture'],
        fields=fields['model_args'],
        num_classes=int(fields['num_classes']),
        class_names=tuple(images.get('label_names') or ()),
        image_size=_numbers(int, images['input_size'], 3)[1:],
        mean=_numbers(float, images['mean'], 3),
        std=_numbers(float, images['std'], 3),
        crop=_crop(images),
        dtype=fields.get('dtype', 'float32'),
        figures=fields.get('figures', {}),
    )
    card.make_model()
    if card.class_names and len(card.class_names) != card.num_classes:
      raise ValueError(
          f'{len(card.class_names)} names for {card.num_classes} classes'
      )
  except KeyError as error:
    raise UserError(f'{where} has no {error}') from error
  except (TypeError, ValueError, AttributeError) as error:
    raise UserError(f'{where}: {error}') from error
  return card


def _crop(images):
  squashed = images.get('crop_mode') == 'squash'
  return 0.0 if squashed else float(images.get('crop_pct', 1.0))


def _numbers(kind, values, count):
  numbers = tuple(kind(value) for value in values)
  if len(numbers) != count:
    raise ValueError(f'{values} should be {count} numbers')
  return numbers


def read(path: pathlib.Path) -> dict[str, Any]:
  """Returns a JSON object.

  Raises:
    UserError: If the file cannot be read, or is none.
  """
  try:
    fields = files.read_json(path)
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error}') from error
  if not isinstance(fields, dict):
    raise UserError(f'{path} has no JSON object')
  return fields
