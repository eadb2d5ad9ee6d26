"""A trained classifier, segmenter or detector, ready for images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import itertools
import pathlib
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, UInt8
import numpy as np
import PIL.Image
from scipy import special

from gswinrmt_jax import ops
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import pictures, segmentation
from gswinrmt_jax.deploy.detections import ObjectDetections
from gswinrmt_jax.deploy.segmentation_map import SegmentationMap
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interpret import drawing, maps
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.models.dense.detector import Detector
from gswinrmt_jax.models.dense.segmenter import Segmenter
from gswinrmt_jax.weights import load as weights_lib

_BATCH = 32
_MOST_CLASSES = 256  # values of uint8
_ROUNDED = 128  # pixels to a multiple of which segmenters pad images
_LAST = {'classes', 'boxes', 'logits', 'deltas'}  # last layers of a detector
_STRIDE = 32  # the same for detectors whose images have bounds

# A path, a PIL image, or pixels from 0 to 255, uint8 [h w 3], of any size.
Image = str | pathlib.Path | PIL.Image.Image | UInt8[np.ndarray, 'h w 3']


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The most probable classes of one image, the most probable first.

  Its text is a table of probabilities and names.

  Attributes:
    image: Path of the image, or 'image' if it was not read from a file.
    labels: Class numbers.
    names: Class names.
    probabilities: Softmax over all classes.
  """

  image: str
  labels: tuple[int, ...]
  names: tuple[str, ...]
  probabilities: tuple[float, ...]

  def __str__(self) -> str:
    rows = zip(self.probabilities, self.names, strict=True)
    return '\n'.join(
        [self.image, *(f'  {share:7.2%}  {name}' for share, name in rows)]
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


class _Loaded:
  """What loaded classifiers, segmenters and detectors share."""

  def __init__(self, weights: weights_lib.Weights, model: nn.Module):
    self.model, self.variables = model, weights.variables
    self.card, self.origin = weights.card, weights.origin

  def _check_finite(self, finite, name):
    """Refuses logits of NaN, of which one class or another is the largest."""
    if not finite.all():
      raise UserError(
          f'{name}: the logits of {self.origin} are not finite; the weights '
          'may be damaged, or have diverged in training'
      )

  @property
  def class_names(self) -> tuple[str, ...]:
    """Class names by label; 'class 7' where the weights name none."""
    return tuple(map(self.card.class_name, range(self.card.num_classes)))

  def _normalize(self, pixels):
    card = self.card
    return augment_lib.normalize(
        jnp.asarray(pixels), mean=card.mean, std=card.std
    )

  def _apply(self, variables, pixels, **how):
    image = self._normalize(pixels)
    return self.model.apply(variables, image, train=False, **how)


class LoadedModel(_Loaded):
  """A model with its weights, for images of one size.

      loaded = gswinrmt_jax.load_model('digits_small')
      print(loaded.predict('examples/images/digit_0.png'))
      logits = loaded.logits(paths)  # [b k]
      vectors = loaded.embed(paths)  # [b c]

  Attributes:
    model: The Linen model.
    variables: `{'params', 'batch_stats'}`, float32.
    card: The card of the weights: architecture, mean and standard deviation of
      the channels, measured results.
    class_names: Class names by label; 'class 7' where the weights name none.
    origin: Description of where the weights come from.
    image_size: Height and width of the model's input.
  """

  model: Backbone

  def __init__(
      self,
      weights: weights_lib.Weights,
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
    self._jitted = jax.jit(self._apply, static_argnames='method')

  def __repr__(self) -> str:
    height, width = self.image_size
    return (
        f'LoadedModel({self.origin!r}, {len(self.class_names)} classes, '
        f'{height} x {width} pixels)'
    )

  def pixels(self, image: Image) -> UInt8[np.ndarray, 'h w 3']:
    """Returns an image as the model sees it: resized and cropped, uint8.

    Args:
      image: A path, a PIL image, or pixels from 0 to 255, uint8 `[h, w, 3]`, of
        any size. A PIL image is converted as its file would be: transparent
        parts become white, and EXIF rotation is applied.

    Raises:
      UserError: If a file or PIL image cannot be read.
      ValueError: If an array is not uint8 `[h, w, 3]`.
    """
    return pictures.fit(_picture(image), self.image_size, self._crop)

  def preprocess(self, image: Image) -> Float32[np.ndarray, 'h w 3']:
    """Returns the model's input, `(pixels / 255 - mean) / std`.

    Arguments and errors are those of `pixels`. `np.stack` makes a batch.
    """
    return np.asarray(self._normalize(self.pixels(image)[None])[0])

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
      skip: Called with a message for each unreadable file of a sequence, which
        is then left out; None raises the error instead.

    Returns:
      A prediction for one image, a list of them for a sequence.

    Raises:
      UserError: If the model has no head, a file or PIL image cannot be read,
        or logits are not finite.
      ValueError: If `top` is not a whole number above 0, or an array is not
        uint8 pixels, for instance because it is already normalised.
    """
    many = images if _is_many(images) else [images]
    found = list(self.predict_each(many, top, skip=skip))
    return found if many is images else found[0]

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
    if not _is_count(top):
      raise ValueError(f'top is {top!r}: must be a whole number above 0')
    self._check_has_classes()
    return self._each(_readable(images, self.pixels, skip), top)

  def _each(self, readable, top):
    size = None
    while batch := list(itertools.islice(readable, _BATCH)):
      names, pixels = zip(*batch, strict=True)
      size = size or len(batch)  # One shape compiles once.
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
    return self._jitted(self.variables, pixels, method='features')

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
        self._normalize(pixels[None])[0],
        point=point,
        label=prediction.labels[0],
    )
    name, probability = prediction.names[0], prediction.probabilities[0]
    file = pathlib.Path(prediction.image).name
    drawing.write(
        folder, found, pixels, title=f'{file}: {name} ({probability:.1%})'
    )

  def _check_has_classes(self):
    if not self.card.num_classes:
      raise UserError(f'{self.origin} is a backbone: it has no classes')

  def _all_pixels(self, images):
    images = images if _is_many(images) else [images]
    return [self.pixels(image) for image in images]

  def _rows(self, pixels, size=None, **how) -> Iterator[np.ndarray]:
    """Yields a row of the output for each image, float32, `size` at a time."""
    size = size or min(_BATCH, len(pixels))  # One shape compiles once.
    for start in range(0, len(pixels), size):
      batch = pixels[start : start + size]
      padded = np.stack([*batch, *batch[:1] * (size - len(batch))])
      rows = self._jitted(self.variables, padded, **how)
      yield from np.asarray(rows, np.float32)[: len(batch)]

  def _prediction(self, name, row, top):
    labels = np.argsort(-row, kind='stable')[:top].tolist()
    return Prediction(
        image=name,
        labels=tuple(labels),
        names=tuple(map(self.card.class_name, labels)),
        probabilities=tuple(float(row[label]) for label in labels),
    )


class _LoadedDense(_Loaded):
  """A segmenter or detector, for images resized to fit within bounds."""

  def __init__(
      self,
      weights: weights_lib.Weights,
      image_size: int | None = None,
      dtype: str = 'float32',
  ):
    """Builds the model; arguments as in `load_model`."""
    if image_size is not None and not _is_count(image_size):
      raise ValueError(
          f'image_size is {image_size!r}: must be one number, the shorter '
          'side, whole and above 0'
      )
    super().__init__(weights, weights.card.make_model(dtype=dtype))
    self.fit_within = weights.fit_within(image_size)

  def __repr__(self) -> str:
    name = type(self).__name__
    return f'{name}({self.origin!r}, {len(self.class_names)} classes)'


class LoadedSegmenter(_LoadedDense):
  """A segmenter with its weights, for images of any size.

      loaded = gswinrmt_jax.load_model('runs/camvid_rmt')
      found = loaded.predict('street.png')
      print(found)
      found.overlay().show()

  Attributes:
    model: The Linen model.
    variables: `{'params', 'batch_stats'}`, float32.
    card: The card of the weights.
    class_names: Class names by label; 'class 7' where the weights name none.
    origin: Description of where the weights come from.
    fit_within: Bounds of the longer and the shorter side that images are
      resized to fit; None keeps their size.
  """

  model: Segmenter

  def __init__(self, weights: weights_lib.Weights, *args: Any, **how: Any):
    """Builds the model; arguments as in `load_model`."""
    super().__init__(weights, *args, **how)
    self._classes = jax.jit(self._classify, static_argnames='size')

  def predict(
      self,
      images: Image | Sequence[Image],
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> SegmentationMap | list[SegmentationMap]:
    """Returns the class of each pixel of one or several images.

    Images are resized as in evaluation, and the logits back to the original
    size.

    Args:
      images: One image, or a sequence of them: paths, PIL images or uint8
        arrays `[h, w, 3]`, of any size.
      skip: As in `LoadedModel.predict`.

    Returns:
      A segmentation map for one image, a list of them for a sequence.

    Raises:
      UserError: If a file or PIL image cannot be read, logits are not finite,
        or the model has more than 256 classes.
      ValueError: If an array is not uint8 pixels.
    """
    many = images if _is_many(images) else [images]
    found = list(self.predict_each(many, skip=skip))
    return found if many is images else found[0]

  def predict_each(
      self,
      images: Iterable[Image],
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> Iterator[SegmentationMap]:
    """Yields the maps of `predict`, with one image in memory at a time."""
    classes = self.card.num_classes
    if classes > _MOST_CLASSES:
      raise UserError(
          f'{self.origin} has {classes} classes, and segmentation maps hold '
          f'{_MOST_CLASSES}: apply its `model` to get logits'
      )
    return (
        SegmentationMap(
            name,
            np.asarray(image),
            self._segment(image, name),
            self.class_names,
        )
        for name, image in _readable(images, _picture, skip)
    )

  def _segment(self, image, name):
    size = segmentation.fit(image.size, self.fit_within)
    pixels = segmentation.resize_image(image, size)
    width, height = image.size
    # Images whose sides round up to the same sizes share a compiled program.
    rest = [(0, -side % _ROUNDED) for side in pixels.shape[:2]]
    classes, finite = self._classes(
        self.variables,
        np.pad(pixels, [*rest, (0, 0)])[None],
        np.array([pixels.shape[:2]], np.int32),
        np.array([[height, width]], np.int32),
        size=tuple(side + -side % _ROUNDED for side in (height, width)),
    )
    self._check_finite(np.asarray(finite)[:height, :width], name)
    return np.asarray(classes)[:height, :width]

  def _classify(self, variables, pixels, extents, target, *, size):
    """Returns the classes, uint8, of one padded image, resized to `target`.

    Also returns which pixels have finite logits.
    """
    logits = self._apply(variables, pixels, extents=extents)
    logits = ops.resize_bilinear(logits, extents, target, size=size)[0]
    return logits.argmax(-1).astype(jnp.uint8), jnp.isfinite(logits).all(-1)


class LoadedDetector(_LoadedDense):
  """A detector with its weights, for images of any size.

      loaded = gswinrmt_jax.load_model('runs/bccd')
      found = loaded.predict('cells.png')
      print(found)
      found.boxes, found.scores, found.labels, found.masks  # arrays
      found.picture().show()

  Attributes:
    model: The Linen model.
    variables: `{'params', 'batch_stats'}`, float32.
    card: The card of the weights.
    class_names: Class names by label; 'class 7' where the weights name none.
    origin: Description of where the weights come from.
    fit_within: Bounds of the longer and the shorter side that images are
      resized to fit; None keeps their size.
  """

  model: Detector

  def __init__(self, weights: weights_lib.Weights, *args: Any, **how: Any):
    """Builds the model; arguments as in `load_model`."""
    super().__init__(weights, *args, **how)
    self._jitted = jax.jit(self._detect)

  def predict(
      self,
      images: Image | Sequence[Image],
      least_score: float = 0.3,
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> ObjectDetections | list[ObjectDetections]:
    """Returns the objects of one or several images, best first.

    Images are resized as in evaluation, and boxes are in pixels of the image
    as it is given.

    Args:
      images: One image, or a sequence of them: paths, PIL images or uint8
        arrays `[h, w, 3]`, of any size.
      least_score: Least probability of an object. 0 returns all that the
        detector finds (of at least its own `least_score`, 0.05 as released),
        which average precision needs.
      skip: As in `LoadedModel.predict`.

    Returns:
      The objects of one image, a list of them for a sequence.

    Raises:
      UserError: If a file or PIL image cannot be read, or logits are not
        finite.
      ValueError: If `least_score` is not in [0, 1], or an array is not uint8
        pixels.
    """
    many = images if _is_many(images) else [images]
    found = list(self.predict_each(many, least_score, skip=skip))
    return found if many is images else found[0]

  def predict_each(
      self,
      images: Iterable[Image],
      least_score: float = 0.3,
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> Iterator[ObjectDetections]:
    """Yields the objects of `predict`, with one image in memory at a time."""
    if not 0 <= least_score <= 1:
      raise ValueError(f'least_score is {least_score!r}: must be in [0, 1]')
    return (
        self._objects(name, image, least_score)
        for name, image in _readable(images, _picture, skip)
    )

  def _objects(self, name, image, least_score):
    size = segmentation.fit(image.size, self.fit_within)
    pixels = segmentation.resize_image(image, size)
    down, across = pixels.shape[:2]
    canvas = self._canvas(down, across)
    rest = (0, canvas[0] - down), (0, canvas[1] - across), (0, 0)
    found, finite = self._jitted(
        self.variables,
        np.pad(pixels, rest)[None],
        np.array([[down, across]], np.int32),
    )
    self._check_finite(np.asarray(finite), name)
    used = np.asarray(found['scores'][0])
    used = (used > 0) & (used >= least_score)
    found = {k: np.asarray(array[0])[used] for k, array in found.items()}
    scale = np.array([image.width / across, image.height / down] * 2)
    return ObjectDetections(
        image=name,
        pixels=np.asarray(image),
        boxes=(found['boxes'] * scale).astype(np.float32),
        scores=found['scores'],
        labels=found['labels'],
        names=self.class_names,
        cells=found.get('masks'),
    )

  def _detect(self, variables, pixels, extents):
    """Returns the detections, and whether the logits are finite.

    Without the latter, an image would seem to have no objects.
    """
    found, state = self._apply(
        variables,
        pixels,
        extents=extents,
        capture_intermediates=lambda module, _: module.name in _LAST,
    )
    last = jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(state)])
    found = {k: v for k, v in found._asdict().items() if v is not None}
    return found, last.all()

  def _canvas(self, *size):
    """Returns height and width to which an image is padded.

    There are few, each with a compiled program: one for each orientation if the
    longer and shorter side are bounded, else two in each octave of a side.
    """
    if self.fit_within is None:
      return tuple(map(_rounded_up, size))
    long, short = (side + -side % _STRIDE for side in self.fit_within)
    return (long, short) if size[0] > size[1] else (short, long)


def _rounded_up(side):
  """Returns the next of 64, 128, 192, 256, 384, 512, 768, ... pixels."""
  step = 2 ** max(6, (side - 1).bit_length() - 2)
  return side + -side % step


def load_model(
    source: str | pathlib.Path,
    *,
    image_size: int | tuple[int, int] | None = None,
    dtype: str = 'float32',
    step: int | str = 'best',
    which: str | None = None,
) -> LoadedModel | LoadedSegmenter | LoadedDetector:
  """Returns a trained model with its preprocessing and class names.

      loaded = load_model('digits_small')
      print(loaded.predict('examples/images/digit_0.png'))
      logits = loaded.logits('examples/images/digit_0.png')

  Args:
    source: A name in `list_models(pretrained=True)`, a run folder, one of its
      checkpoints (RUN/checkpoints/STEP), a folder of weights, a `.safetensors`
      file, a `.pth` file of RMT, or `hf-hub:OWNER/NAME[@REVISION]`. An existing
      file or folder takes precedence over a name.
    image_size: Height and width that images are resized to, or one number for
      both; None takes the size that the weights were trained for. Any size
      from the stride of the last stage upwards runs, but accuracy holds only
      near the trained size: another one prints a warning. Above the trained
      size, no margin is cut off. For a segmenter or detector, one number: the
      shorter side of the images, whose longer side is at most 4 times as long
      (detectors: 5/3).
    dtype: Computation dtype, 'float32' or 'bfloat16'.
    step: For a run: 'best' on validation data, 'latest' or a number.
    which: For a run: 'raw', or 'ema' for the moving average; None takes the one
      with the better validation accuracy at that step.

  Raises:
    UserError: If no weights can be read, or the model does not take images of
      this size.
    ValueError: If `image_size` is not made of whole numbers above 0, or not one
      number for a segmenter or detector.
  """
  weights = weights_lib.load(pathlib.Path(source), step=step, which=which)
  return from_weights(weights, image_size, dtype)


def from_weights(
    weights: weights_lib.Weights,
    image_size: int | tuple[int, int] | None = None,
    dtype: str = 'float32',
    warn: Callable[[str], None] = print,
) -> LoadedModel | LoadedSegmenter | LoadedDetector:
  """Returns a model as `load_model` does, from weights already loaded.

  `warn` receives a message if the image size is not that of training.

  Raises:
    UserError: If the model does not take images of this size.
    ValueError: If `image_size` is wrong, as in `load_model`.
  """
  loaded = _KINDS[weights.task](weights, image_size, dtype)
  classifies = weights.task == 'classification'
  size = loaded.image_size if classifies else loaded.fit_within
  weights.warn_of_size(size, warn)
  return loaded


_KINDS = {
    'classification': LoadedModel,
    'segmentation': LoadedSegmenter,
    'detection': LoadedDetector,
}


def _height_and_width(image_size):
  """Returns height and width of an image size, which may be one number."""
  is_pair = isinstance(image_size, (list, tuple))
  sides = tuple(image_size) if is_pair else (image_size, image_size)
  if len(sides) != 2 or not all(map(_is_count, sides)):
    raise ValueError(
        f'image_size is {image_size!r}: must be height and width, or one '
        'number for both, whole and above 0'
    )
  return sides


def _is_count(value):
  return isinstance(value, (int, np.integer)) and value > 0


def _readable(images, read, skip):
  """Yields name and `read(image)`; errors of unreadable images go to `skip`."""
  for image in images:
    name = str(image) if isinstance(image, (str, pathlib.Path)) else 'image'
    try:
      yield name, read(image)
    except UserError as error:
      if skip is None:
        raise
      skip(str(error))


def _picture(image):
  """Returns a path, a PIL image or pixels as a PIL image in RGB."""
  if isinstance(image, (str, pathlib.Path)):
    return pictures.read(pathlib.Path(image))
  if isinstance(image, PIL.Image.Image):
    try:
      return pictures.to_rgb(image)
    except (ValueError, OSError) as error:  # OSError: opened, but damaged
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


def _is_many(images):
  """Returns whether this is a sequence of images rather than one image."""
  if isinstance(images, (str, pathlib.Path, PIL.Image.Image)):
    return False
  # An array of two axes is a grey image, which is refused by its shape.
  return getattr(images, 'ndim', 4) not in (2, 3)
