"""Classes of pictures."""

from collections.abc import Iterator, Sequence
import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax import maps
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import pictures
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights.card import Card
from gswinrmt_jax.weights.load import Weights

_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The most probable classes of one picture, the first first.

  Attributes:
    path: The picture.
    labels: Their numbers.
    names: Their names.
    probabilities: Of the softmax over all classes.
  """

  path: pathlib.Path
  labels: tuple[int, ...]
  names: tuple[str, ...]
  probabilities: tuple[float, ...]

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON values."""
    rows = zip(self.labels, self.names, self.probabilities, strict=True)
    return {
        'image': str(self.path),
        'predictions': [
            {'label': label, 'name': name, 'probability': probability}
            for label, name, probability in rows
        ],
    }


class Predictor:
  """A model with its weights, for pictures of one size.

  Attributes:
    card: The model's.
    model: In float32.
    variables: Its weights.
    image_size: Height and width.
  """

  def __init__(self, weights: Weights, image_size: int | None = None):
    """Builds the model.

    Args:
      weights: As loaded.
      image_size: Height and width; None takes the card's. Above the card's
        no margin is cut off, see `Card.crop_at`.

    Raises:
      UserError: If the model has no head, or does not take that size.
    """
    if not weights.card.num_classes:
      raise UserError(f'{weights.origin} is a backbone: it has no classes')
    self.card = dataclasses.replace(weights.card, dtype='float32')
    self.image_size = self.card.image_size
    if image_size is not None:
      self.image_size = (image_size, image_size)
    self._crop = self.card.crop_at(self.image_size)
    weights = dataclasses.replace(weights, card=self.card)
    self.model = weights.make_model(self.image_size)
    self.variables = weights.variables
    self._apply = jax.jit(self._probabilities)

  def read(self, path: pathlib.Path) -> np.ndarray:
    """Returns a picture as the model sees it, uint8 `[h w 3]`."""
    return pictures.fit(pictures.read(path), self.image_size, self._crop)

  def normalized(self, image: jax.Array) -> jax.Array:
    """Returns uint8 images as the model's input."""
    return augment_lib.normalize(image, mean=self.card.mean, std=self.card.std)

  def predict(
      self,
      paths: Sequence[pathlib.Path],
      images: Sequence[np.ndarray],
      top: int,
  ) -> Iterator[Prediction]:
    """Yields the `top` most probable classes of each image.

    Args:
      paths: Where they are from.
      images: As `read` returns them.
      top: How many classes; all, if there are fewer.
    """
    size = min(_BATCH, len(images))  # One shape, so that one program serves.
    for start in range(0, len(images), size):
      chunk = list(images[start : start + size])
      padded = np.stack(chunk + [chunk[0]] * (size - len(chunk)))
      rows = np.asarray(self._apply(self.variables, padded))
      for path, row in zip(paths[start:], rows[: len(chunk)], strict=False):
        labels = np.argsort(-row, kind='stable')[:top].tolist()
        yield Prediction(
            path=path,
            labels=tuple(labels),
            names=tuple(class_name(self.card, label) for label in labels),
            probabilities=tuple(float(row[label]) for label in labels),
        )

  def _probabilities(self, variables, image):
    logits = self.model.apply(variables, self.normalized(image), train=False)
    return jax.nn.softmax(logits)


def write_maps(
    predictor: Predictor,
    prediction: Prediction,
    image: np.ndarray,
    folder: pathlib.Path,
    point: tuple[int, int] | None = None,
) -> None:
  """Writes the maps of one picture, for its most probable class.

  Args:
    predictor: What predicted it.
    prediction: What it predicted.
    image: As `Predictor.read` returned it.
    folder: Where the maps go.
    point: Pixel (x, y) of the image whose attention is shown; None is the
      middle.

  Raises:
    UserError: If the point is outside of the image.
  """
  found = maps.compute(
      predictor.model,
      predictor.variables,
      predictor.normalized(jnp.asarray(image[None]))[0],
      point=point,
      label=prediction.labels[0],
  )
  title = (
      f'{prediction.path.name}: {prediction.names[0]} '
      f'({prediction.probabilities[0]:.1%})'
  )
  maps.write(folder, found, image, title=title)


def class_name(card: Card, label: int) -> str:
  """Returns the name of a class; 'class 7' where nobody said one."""
  return card.class_names[label] if card.class_names else f'class {label}'
