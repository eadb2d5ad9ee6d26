"""Predicts the classes of images, and draws what the model looked at."""

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
from gswinrmt_jax.weights.load import Weights

_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The most probable classes of one image, the most probable first.

  Attributes:
    path: The image.
    labels: Their numbers.
    names: Their names.
    probabilities: Softmax over all classes.
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
  """A model with its weights, for images of one size.

  Attributes:
    card: The card of the weights.
    model: The model, computing in float32.
    variables: Its weights.
    image_size: Height and width.
  """

  def __init__(self, weights: Weights, image_size: int | None = None):
    """Builds the model.

    Args:
      weights: The weights.
      image_size: Height and width; None takes the card's. Above the card's
        size no margin is cut off, see `Card.crop_at`.

    Raises:
      UserError: If the model has no head, or does not take that size.
    """
    if not weights.card.num_classes:
      raise UserError(f'{weights.origin} is a backbone: it has no classes')
    self.card = weights.card
    size = (image_size, image_size) if image_size else weights.card.image_size
    self.image_size = size
    self.model = weights.make_model(size, dtype='float32')
    self.variables = weights.variables
    self._crop = weights.card.crop_at(size)
    self._apply = jax.jit(self._probabilities)

  def read(self, path: pathlib.Path) -> np.ndarray:
    """Returns an image at the model's image size, uint8 `[h w 3]`."""
    return pictures.fit(pictures.read(path), self.image_size, self._crop)

  def normalized(self, image: jax.Array) -> jax.Array:
    """Returns the model's input, `(image / 255 - mean) / std`.

    Args:
      image: Pixels from 0 to 255, uint8 `[b h w 3]`, as `read` returns them.

    Raises:
      ValueError: If it has another type or shape.
    """
    wanted = (*self.image_size, 3)
    if image.dtype != np.uint8 or image.ndim != 4 or image.shape[1:] != wanted:
      raise ValueError(
          f'images are {image.dtype} {image.shape}: must be pixels from 0 to '
          f'255, uint8 (b, {", ".join(map(str, wanted))})'
      )
    return augment_lib.normalize(image, mean=self.card.mean, std=self.card.std)

  def predict(
      self,
      paths: Sequence[pathlib.Path],
      images: Sequence[np.ndarray],
      top: int,
  ) -> Iterator[Prediction]:
    """Yields the `top` most probable classes of each image.

    Args:
      paths: The files of the images.
      images: Pixels, as `read` returns them.
      top: How many classes; all, if there are fewer.

    Raises:
      ValueError: If the images are no uint8 pixels of the model's size.
    """
    size = min(_BATCH, len(images))  # One shape compiles once.
    for start in range(0, len(images), size):
      chunk = list(images[start : start + size])
      padded = np.stack(chunk + [chunk[0]] * (size - len(chunk)))
      rows = np.asarray(self._apply(self.variables, padded))
      for path, row in zip(paths[start:], rows[: len(chunk)], strict=False):
        labels = np.argsort(-row, kind='stable')[:top].tolist()
        yield Prediction(
            path=path,
            labels=tuple(labels),
            names=tuple(map(self.card.class_name, labels)),
            probabilities=tuple(float(row[label]) for label in labels),
        )

  def write_maps(
      self,
      prediction: Prediction,
      image: np.ndarray,
      folder: pathlib.Path,
      point: tuple[int, int] | None = None,
  ) -> None:
    """Writes the maps of one image, for its most probable class.

    Args:
      prediction: The prediction for the image.
      image: The image as `read` returned it.
      folder: Where the maps are written.
      point: Pixel (x, y) of the image whose attention is shown; None is the
        middle.

    Raises:
      UserError: If the point is outside the image.
    """
    found = maps.compute(
        self.model,
        self.variables,
        self.normalized(jnp.asarray(image[None]))[0],
        point=point,
        label=prediction.labels[0],
    )
    name, probability = prediction.names[0], prediction.probabilities[0]
    title = f'{prediction.path.name}: {name} ({probability:.1%})'
    maps.write(folder, found, image, title=title)

  def _probabilities(self, variables, image):
    logits = self.model.apply(variables, self.normalized(image), train=False)
    return jax.nn.softmax(logits)
