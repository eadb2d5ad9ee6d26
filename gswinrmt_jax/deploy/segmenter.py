"""A segmenter with its weights, and the maps that it predicts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.data import resizing
from gswinrmt_jax.deploy import loaded_model
from gswinrmt_jax.deploy.loaded_model import Image, LoadedDenseModel
from gswinrmt_jax.deploy.segmentation_map import SegmentationMap
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models.dense.segmenter import Segmenter

_MOST_CLASSES = 256  # values of uint8
_ROUNDED = 128  # pixels to a multiple of which images are padded


class LoadedSegmenter(LoadedDenseModel):
  """A segmenter with its weights, for images of any size.

      loaded = gswinrmt_jax.load_model('runs/camvid_rmt')
      found = loaded.predict('street.png')
      print(found)
      found.overlay().show()

  Its attributes are those of `LoadedDenseModel`.
  """

  model: Segmenter

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
      images: One image, or a sequence of them: paths, bytes of files, PIL
        images or uint8 arrays `[h, w, 3]`, of any size.
      skip: As in `LoadedClassifier.predict`.

    Returns:
      A segmentation map for one image, a list of them for a sequence.

    Raises:
      UserError: If a file or PIL image cannot be read, logits are not finite,
        or the model has more than 256 classes.
      ValueError: If an array is not uint8 pixels.
    """
    return loaded_model.as_given(
        images, lambda many: self.predict_each(many, skip=skip)
    )

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
        for name, image in loaded_model.read_each(images, skip)
    )

  def _segment(self, image, name):
    size = resizing.size_within(image.size, self.fit_within)
    pixels = resizing.resize(image, size)
    width, height = image.size
    # Images whose sides round up to the same sizes share a compiled program.
    rest = [(0, -side % _ROUNDED) for side in pixels.shape[:2]]
    classes, finite = _classify(
        self._pixel_model,
        self.variables,
        np.pad(pixels, [*rest, (0, 0)])[None],
        np.array([pixels.shape[:2]], np.int32),
        np.array([[height, width]], np.int32),
        size=tuple(side + -side % _ROUNDED for side in (height, width)),
    )
    self._check_finite(np.asarray(finite)[:height, :width], name)
    return np.asarray(classes)[:height, :width]


@functools.partial(jax.jit, static_argnames=('model', 'size'))
def _classify(model, variables, pixels, extents, target, *, size):
  """Returns the classes, uint8, of one padded image, resized to `target`.

  Also returns which pixels have finite logits. Only one class at a time has
  logits of the image's size. For 1,000 x 1,500 pixels and 150 classes, that
  takes 0.3 GB and 1.5 s; all classes at once take 1.4 GB and 12.7 s (random
  logits, interleaved on two busy CPU cores; not measured on a GPU).
  """

  def compare(best, row):
    label, one = row
    classes, highest, finite = best
    logit = ops.resize_bilinear(
        one[None, ..., None], extents, target, size=size
    )
    logit = logit[0, ..., 0]
    higher = logit > highest
    return (
        jnp.where(higher, label, classes),
        jnp.where(higher, logit, highest),
        finite & jnp.isfinite(logit),
    ), None

  logits = jnp.moveaxis(
      model.apply(variables, pixels, extents=extents)[0], -1, 0
  )
  start = (
      jnp.zeros(size, jnp.uint8),
      jnp.full(size, -jnp.inf, logits.dtype),
      jnp.ones(size, bool),
  )
  labels = jnp.arange(len(logits), dtype=jnp.uint8)
  (classes, _, finite), _ = jax.lax.scan(compare, start, (labels, logits))
  return classes, finite
