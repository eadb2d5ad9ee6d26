"""A model with its weights: what the models of all tasks share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import os
import pathlib
from typing import Any, NamedTuple

from flax import linen as nn
from jaxtyping import Array, UInt8
import numpy as np
import PIL.Image

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import pictures
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import counted
from gswinrmt_jax.weights import load

# A path, the bytes of a file, a PIL image, or pixels from 0 to 255, uint8
# [h w 3], of any size.
Image = (
    str | pathlib.Path | bytes | PIL.Image.Image | UInt8[np.ndarray, 'h w 3']
)


class PixelModel(NamedTuple):
  """A model with the normalisation of its input.

  As a static argument of `jax.jit`, it lets all weights of equal models use one
  compiled program.

  Attributes:
    model: The Linen model.
    mean: Mean of each channel, of pixels / 255.
    std: Standard deviation of each channel.
  """

  model: nn.Module
  mean: tuple[float, ...]
  std: tuple[float, ...]

  def apply(self, variables: Any, pixels: Array, **how: Any) -> Any:
    """Returns what the model makes of pixels, uint8 `[b h w 3]`; traced."""
    image = augment_lib.normalize(pixels, mean=self.mean, std=self.std)
    return self.model.apply(variables, image, train=False, **how)


class LoadedModel:
  """A model with its weights.

  Attributes:
    model: The Linen model.
    variables: `{'params', 'batch_stats'}`, float32.
    card: The card of the weights: architecture, mean and standard deviation of
      the channels, measured results.
    origin: Description of where the weights come from.
  """

  def __init__(self, weights: load.Weights, model: nn.Module):
    """Binds weights to their model."""
    self.model, self.variables = model, weights.variables
    self.card, self.origin = weights.card, weights.origin

  @property
  def class_names(self) -> tuple[str, ...]:
    """Class names by label; 'class 7' where the weights name none."""
    return tuple(map(self.card.class_name, range(self.card.num_classes)))

  def _check_finite(self, finite, name):
    """Refuses logits of NaN, of which one class or another is the largest."""
    if not finite.all():
      raise UserError(
          f'{name}: the logits of {self.origin} are not finite; the weights '
          'may be damaged, or have diverged in training'
      )

  def _normalize(self, pixels):
    """Returns `(pixels / 255 - mean) / std`, float32."""
    # In NumPy, as a worker process that was forked cannot use JAX.
    mean, std = np.float32(self.card.mean), np.float32(self.card.std)
    return (pixels.astype(np.float32) / 255 - mean) / std

  @property
  def _pixel_model(self):
    return PixelModel(self.model, self.card.mean, self.card.std)


class LoadedDenseModel(LoadedModel):
  """A segmenter or detector, for images resized to fit within bounds.

  It has the attributes of `LoadedModel`, too.

  Attributes:
    fit_within: Bounds of the longer and the shorter side, in pixels; None keeps
      the size of images.
  """

  def __init__(
      self,
      weights: load.Weights,
      image_size: int | None = None,
      dtype: str = 'float32',
  ):
    """Builds the model; arguments as in `load_model`."""
    if image_size is not None and not is_count(image_size):
      raise ValueError(
          f'image_size is {image_size!r}: must be one number, the shorter '
          'side, whole and above 0'
      )
    super().__init__(weights, weights.card.make_model(dtype=dtype))
    self.fit_within = weights.size(image_size)

  def __repr__(self) -> str:
    classes = counted(len(self.class_names), 'class', 'classes')
    return f'{type(self).__name__}({self.origin!r}, {classes})'


def is_count(value: object) -> bool:
  """Returns whether a value is a whole number above 0."""
  return isinstance(value, (int, np.integer)) and value > 0


def as_given(
    images: Image | Sequence[Image],
    predict_each: Callable[[Iterable[Image]], Iterator[Any]],
) -> Any:
  """Returns the prediction of one image, or a list of those of a sequence.

  That of one image is None if the image was skipped.
  """
  many = is_many(images)
  found = list(predict_each(images if many else [images]))
  return found if many else next(iter(found), None)


def is_many(images: Image | Sequence[Image]) -> bool:
  """Returns whether this is a sequence of images rather than one image."""
  if isinstance(images, (str, pathlib.Path, bytes, PIL.Image.Image)):
    return False
  # An array of two axes is a grey image, which is refused by its shape.
  return getattr(images, 'ndim', 4) not in (2, 3)


def read_each(
    images: Iterable[Image], skip: Callable[[str], Any] | None
) -> Iterator[tuple[str, PIL.Image.Image]]:
  """Yields the name of each image, and the image, see `read`.

  Messages of those that cannot be read go to `skip`; None raises the error.

  Raises:
    ValueError: If there is no sequence, or as `read`.
  """
  if not is_many(images):
    raise ValueError(
        'images is one image: must be a sequence; `predict` takes both'
    )
  for image in images:
    name = str(image) if isinstance(image, (str, pathlib.Path)) else 'image'
    try:
      yield name, read(image)
    except UserError as error:
      if skip is None:
        raise
      skip(str(error))


def read(image: Image) -> PIL.Image.Image:
  """Returns an image in RGB; transparent parts become white.

  Raises:
    UserError: If a file, its bytes or a PIL image cannot be read.
    ValueError: If an array is not uint8 `[h, w, 3]`.
  """
  if isinstance(image, (str, pathlib.Path)):
    return pictures.read(pathlib.Path(os.path.expanduser(image)))
  if isinstance(image, bytes):
    return pictures.decode(image, 'an image')
  if isinstance(image, PIL.Image.Image):
    try:
      return pictures.to_rgb(image)
    except ValueError as error:
      raise UserError(f'an image {error}') from error
  return PIL.Image.fromarray(_checked(image))


def _checked(image):
  """Returns uint8 pixels; refuses arrays that may already be normalised."""
  array = np.asarray(image)
  if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3:
    raise ValueError(
        f'an image is {array.dtype} {array.shape}: must be pixels from 0 to '
        '255, uint8 (h, w, 3); pass normalised images to model.apply'
    )
  return array
