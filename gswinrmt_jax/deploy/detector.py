"""A detector with its weights."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.data import resizing
from gswinrmt_jax.deploy import loaded_model
from gswinrmt_jax.deploy.detections import ObjectDetections
from gswinrmt_jax.deploy.loaded_model import Image, LoadedDenseModel
from gswinrmt_jax.models.dense.detector import Detector

_LAST = {'classes', 'boxes', 'logits', 'deltas'}  # the last layers
# Pixels to a multiple of which images are padded if their sides have bounds.
_STRIDE = 32


class LoadedDetector(LoadedDenseModel):
  """A detector with its weights, for images of any size.

      loaded = gswinrmt_jax.load_model('runs/bccd')
      found = loaded.predict('cells.png')
      print(found)
      found.boxes, found.scores, found.labels, found.masks  # arrays
      found.picture().show()

  Its attributes are those of `LoadedDenseModel`.
  """

  model: Detector

  def predict(
      self,
      images: Image | Sequence[Image],
      least_score: float = 0.3,
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> ObjectDetections | list[ObjectDetections]:
    """Returns the objects of one or several images, best first.

    Images are resized as in evaluation. Boxes are in pixels of the image as it
    is seen, after its EXIF rotation.

    Args:
      images: One image, or a sequence of them: paths, bytes of files, PIL
        images or uint8 arrays `[h, w, 3]`, of any size.
      least_score: Least probability of an object. 0 returns all that the
        detector finds (of at least its own `least_score`, 0.05 as released),
        which average precision needs.
      skip: As in `LoadedClassifier.predict`.

    Returns:
      The objects of one image, a list of them for a sequence.

    Raises:
      UserError: If a file or PIL image cannot be read, or logits are not
        finite.
      ValueError: If `least_score` is not a number in [0, 1], or an array is not
        uint8 pixels.
    """
    return loaded_model.as_given(
        images, lambda many: self.predict_each(many, least_score, skip=skip)
    )

  def predict_each(
      self,
      images: Iterable[Image],
      least_score: float = 0.3,
      *,
      skip: Callable[[str], Any] | None = None,
  ) -> Iterator[ObjectDetections]:
    """Yields the objects of `predict`, with one image in memory at a time."""
    if not 0 <= least_score <= 1:
      raise ValueError(
          f'least_score is {least_score!r}: must be a number in [0, 1]'
      )
    return (
        self._objects(name, image, least_score)
        for name, image in loaded_model.read_each(images, skip)
    )

  def _objects(self, name, image, least_score):
    size = resizing.size_within(image.size, self.fit_within)
    pixels = resizing.resize(image, size)
    down, across = pixels.shape[:2]
    canvas = self._canvas(down, across)
    rest = (0, canvas[0] - down), (0, canvas[1] - across), (0, 0)
    found, finite = _detect(
        self._pixel_model,
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

  def _canvas(self, *size):
    """Returns height and width to which an image is padded.

    There are few, each with a compiled program: one for each orientation if the
    longer and shorter side are bounded, else two in each octave of a side.
    """
    if self.fit_within is None:
      return tuple(map(_rounded_up, size))
    long, short = (side + -side % _STRIDE for side in self.fit_within)
    return (long, short) if size[0] > size[1] else (short, long)


@functools.partial(jax.jit, static_argnames='model')
def _detect(model, variables, pixels, extents):
  """Returns the detections, and whether the logits are finite.

  Without the latter, an image would seem to have no objects.
  """
  found, state = model.apply(
      variables,
      pixels,
      extents=extents,
      capture_intermediates=lambda module, _: module.name in _LAST,
  )
  last = jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(state)])
  return found.arrays(), last.all()


def _rounded_up(side):
  """Returns the next of 64, 128, 192, 256, 384, 512, 768, ... pixels."""
  step = 2 ** max(6, (side - 1).bit_length() - 2)
  return side + -side % step
