"""A classifier with its weights, and the classes that it predicts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import itertools
import pathlib
from typing import Any

import jax
from jaxtyping import Array, Float, Float32, UInt8
import numpy as np
from scipy import special

from gswinrmt_jax.data import resizing
from gswinrmt_jax.deploy import loaded_model
from gswinrmt_jax.deploy.loaded_model import Image, LoadedModel, PixelModel
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interpret import drawing, maps
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.terminal import printable
from gswinrmt_jax.weights import load

_BATCH = 32
_apply = jax.jit(PixelModel.apply, static_argnums=0, static_argnames='method')


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The most probable classes of one image, the most probable first.

  Its text is a table of probabilities and names.

  Attributes:
    image: Path of the image, or 'image' if it was not read from a file.
    labels: Class numbers.
    names: Class names.
    probabilities: Their probabilities, by a softmax over all classes.
  """

  image: str
  labels: tuple[int, ...]
  names: tuple[str, ...]
  probabilities: tuple[float, ...]

  def __str__(self) -> str:
    rows = zip(self.probabilities, self.names, strict=True)
    return '\n'.join(
        [
            printable(self.image),
            *(f'  {share:7.2%}  {name}' for share, name in rows),
        ]
    )

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON values."""
    rows = zip(self.labels, self.names, self.probabilities, strict=True)
    return {
        'image': self.image,
        'predictions': [
            {'label': label, 'name': name, 'probability': probability}
            for label, name, probability in rows
        ],
    }


class LoadedClassifier(LoadedModel):
  """A classifier with its weights, for images of one size.

      loaded = gswinrmt_jax.load_model('digits_small')
      print(loaded.predict('examples/images/digit_0.png'))
      logits = loaded.logits(paths)  # [b k]
      vectors = loaded.embed(paths)  # [b c]

  It has the attributes of `LoadedModel`, too.

  Attributes:
    image_size: Height and width of the model's input.
  """

  model: Backbone

  def __init__(
      self,
      weights: load.Weights,
      image_size: int | tuple[int, int] | None = None,
      dtype: str = 'float32',
  ):
    """Builds the model; arguments as in `load_model`."""
    weights.check_is_classifier()
    self.image_size = weights.card.image_size
    if image_size is not None:
      self.image_size = _height_and_width(image_size)
    super().__init__(weights, weights.card.make_model(self.image_size, dtype))
    self._crop = self.card.crop_at(self.image_size)

  def __repr__(self) -> str:
    height, width = self.image_size
    return (
        f'LoadedClassifier({self.origin!r}, {len(self.class_names)} classes, '
        f'{height} x {width} pixels)'
    )

  def pixels(self, image: Image) -> UInt8[np.ndarray, 'h w 3']:
    """Returns an image as the model sees it: resized and cropped, uint8.

    Args:
      image: A path, the bytes of a file, a PIL image, or pixels from 0 to 255,
        uint8 `[h, w, 3]`, of any size. A PIL image is converted as its file
        would be: transparent parts become white, and EXIF rotation is applied.

    Raises:
      UserError: If a file or PIL image cannot be read.
      ValueError: If an array is not uint8 `[h, w, 3]`.
    """
    return self._fit(loaded_model.read(image))

  def preprocess(self, image: Image) -> Float32[np.ndarray, 'h w 3']:
    """Returns the model's input, `(pixels / 255 - mean) / std`.

    Arguments and errors are those of `pixels`. `np.stack` makes a batch.
    """
    return self._normalize(self.pixels(image))

  def predict(
      self,
      images: Image | Sequence[Image],
      top: int = 5,
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> Prediction | list[Prediction]:
    """Returns the `top` most probable classes of one or several images.

    Args:
      images: One image as in `pixels`, or a sequence of them, such as uint8
        `[b, h, w, 3]`.
      top: Number of classes; all, if there are fewer.
      skip: Called with a message for each unreadable image, which is then left
        out; None raises the error instead.

    Returns:
      A prediction for one image (None if it was left out), a list of them for a
      sequence.

    Raises:
      UserError: If the model has no head, a file or PIL image cannot be read,
        or logits are not finite.
      ValueError: If `top` is not a whole number above 0, or an array is not
        uint8 pixels, for instance because it is already normalised.
    """
    return loaded_model.as_given(
        images, lambda many: self.predict_each(many, top, skip=skip)
    )

  def predict_each(
      self,
      images: Iterable[Image],
      top: int = 5,
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> Iterator[Prediction]:
    """Yields the predictions of `predict`, for any number of images.

    At most 32 images are in memory at a time. Arguments and errors are those of
    `predict`.
    """
    if not loaded_model.is_count(top):
      raise ValueError(f'top is {top!r}: must be a whole number above 0')
    self._check_has_classes()
    read = loaded_model.read_each(images, skip)
    return self._each(((name, self._fit(image)) for name, image in read), top)

  def _each(self, read, top):
    size = None
    while batch := list(itertools.islice(read, _BATCH)):
      names, pixels = zip(*batch, strict=True)
      size = size or _size_of(len(batch))
      for name, logits in zip(names, self._rows(pixels, size), strict=True):
        self._check_finite(np.isfinite(logits), name)
        yield self._prediction(name, special.softmax(logits), top)

  def logits(
      self, images: Image | Sequence[Image]
  ) -> Float32[np.ndarray, 'b k']:
    """Returns the logits of one or several images; b is 1 for one image.

    `scipy.special.softmax(logits, -1)` has the probabilities of `predict`.

    Args:
      images: As in `predict`.

    Raises:
      UserError: If the model has no head, or a file or PIL image cannot be
        read.
      ValueError: If an array is not uint8 pixels.
    """
    self._check_has_classes()
    return np.stack([*self._rows(self._all_pixels(images))])

  def embed(
      self, images: Image | Sequence[Image]
  ) -> Float32[np.ndarray, 'b c']:
    """Returns the vector of each image that the last linear layer classifies.

    It is the average over positions before that layer, see `Backbone.embed`,
    for example to search for similar images.

    Args:
      images: As in `predict`; b is 1 for one image.

    Raises:
      UserError: If a file or PIL image cannot be read.
      ValueError: If an array is not uint8 pixels.
    """
    return np.stack([*self._rows(self._all_pixels(images), method='embed')])

  def features(
      self, images: Image | Sequence[Image]
  ) -> dict[str, Float[Array, 'b _ _ _']]:
    """Returns the feature map after each stage: 'stage1', 'stage2' and so on.

    Args:
      images: As in `predict`.

    Returns:
      Feature maps `[b, h / stride, w / stride, c]`, with sizes rounded up; b is
      1 for one image.

    Raises:
      UserError: If a file or PIL image cannot be read.
      ValueError: If an array is not uint8 pixels.
    """
    pixels = np.stack(self._all_pixels(images))
    return _apply(self._pixel_model, self.variables, pixels, method='features')

  def write_maps(
      self,
      prediction: Prediction,
      image: Image,
      folder: pathlib.Path,
      point: tuple[int, int] | None = None,
  ) -> None:
    """Writes the plots of `maps` for one image and its most probable class.

    Args:
      prediction: The prediction for the image.
      image: The image, as in `pixels`.
      folder: Where the plots are written.
      point: Pixel (x, y) of the model's input whose attention is shown; None
        takes the middle.

    Raises:
      UserError: If the point is outside the image, or every stage has a single
        token.
    """
    pixels = self.pixels(image)
    found = maps.compute(
        self.model,
        self.variables,
        self._normalize(pixels),
        point=point,
        label=prediction.labels[0],
    )
    name, probability = prediction.names[0], prediction.probabilities[0]
    file = pathlib.Path(prediction.image).name
    drawing.write(
        folder,
        found,
        pixels,
        title=f'{file}: {name} ({probability:.1%})',
        class_name=name,
    )

  def _fit(self, image):
    return resizing.center_crop(image, self.image_size, self._crop)

  def _check_has_classes(self):
    if not self.card.num_classes:
      raise UserError(f'{self.origin} is a backbone: it has no classes')

  def _all_pixels(self, images):
    images = images if loaded_model.is_many(images) else [images]
    pixels = [self.pixels(image) for image in images]
    if not pixels:
      raise UserError(f'{self.origin}: no images were given')
    return pixels

  def _rows(self, pixels, size=None, **how) -> Iterator[np.ndarray]:
    """Yields a row of the output for each image, float32, `size` at a time."""
    size = size or _size_of(len(pixels))
    for start in range(0, len(pixels), size):
      batch = pixels[start : start + size]
      padded = np.stack([*batch, *batch[:1] * (size - len(batch))])
      rows = _apply(self._pixel_model, self.variables, padded, **how)
      yield from np.asarray(rows, np.float32)[: len(batch)]

  def _prediction(self, name, row, top):
    labels = np.argsort(-row, kind='stable')[:top].tolist()
    return Prediction(
        image=name,
        labels=tuple(labels),
        names=tuple(map(self.card.class_name, labels)),
        probabilities=tuple(float(row[label]) for label in labels),
    )


def _size_of(count):
  """Returns the size of the batches of so many images, a power of two.

  Each size is compiled, which took 5 s for `cifar10_small` on two busy cores.
  """
  return min(_BATCH, 2 ** (count - 1).bit_length())


def _height_and_width(image_size):
  """Returns height and width of an image size, which may be one number."""
  is_pair = isinstance(image_size, (list, tuple))
  sides = tuple(image_size) if is_pair else (image_size, image_size)
  if len(sides) != 2 or not all(map(loaded_model.is_count, sides)):
    raise ValueError(
        f'image_size is {image_size!r}: must be height and width, or one '
        'number for both, whole and above 0'
    )
  return sides
