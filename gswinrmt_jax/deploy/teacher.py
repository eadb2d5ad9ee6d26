"""Label maps made by a model of this package with a dense head."""

from collections.abc import Iterator
import dataclasses
import pathlib

import jax
import numpy as np

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import datasets, label_maps, pipeline
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import backbone
from gswinrmt_jax.training import log
from gswinrmt_jax.training.weights import Weights

_TOP = 5  # classes that a map names at each place
_BATCH = 64


def write_label_maps(
    weights: Weights,
    folder: pathlib.Path,
    *,
    name: str,
    split: str,
    data_dir: str = '',
    image_size: int | None = None,
    terminal: log.Terminal | None = None,
) -> None:
  """Writes what the dense head sees in each record of a split.

  Images are seen whole, brought to one square however they are shaped; the maps
  are the softmax of the dense logits, one place for each token.

  Args:
    weights: The teacher's.
    folder: To make, see `label_maps.write`.
    name: The data set.
    split: Of the data set.
    data_dir: The TFDS data directory.
    image_size: Height and width; None takes the teacher's.
    terminal: Where is told what was written.

  Raises:
    UserError: If the teacher has no dense head or other classes than the data,
      or the maps cannot be written.
  """
  card = dataclasses.replace(weights.card, dtype='float32')
  size = (image_size, image_size) if image_size else card.image_size
  model = dataclasses.replace(weights, card=card).make_model(size)
  if not (model.num_classes and model.arch.dense_head):
    raise UserError(
        f'{weights.origin} has no dense head: only token-label models see what '
        'lies where'
    )
  info = datasets.info(name, data_dir)
  if card.num_classes != len(info.class_names):
    raise UserError(
        f'{weights.origin} tells {card.num_classes} classes apart, {name} has '
        f'{len(info.class_names)}'
    )
  records = datasets.load(
      name, split, data_dir, image_size=size, storage='decode'
  )
  label_maps.write(
      folder,
      _see(model, weights, records),
      name=name,
      split=split,
      data_dir=data_dir,
  )
  (terminal or log.Terminal()).say(
      f'Written to {folder}: {len(records):,} label maps of {name} {split!r}.'
  )


def _see(
    model: backbone.Backbone, weights: Weights, records: pipeline.Records
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the likeliest classes and their probabilities, [h w 5] each."""
  card = weights.card
  top = min(_TOP, card.num_classes)

  @jax.jit
  def see(variables, image):
    pixels = augment_lib.normalize(image, mean=card.mean, std=card.std)
    _, dense = model.apply(
        variables, pixels, train=False, method='class_and_dense_logits'
    )
    return jax.lax.top_k(jax.nn.softmax(dense), top)

  for batch in pipeline.eval_batches(records, batch_size=_BATCH):
    score, index = jax.device_get(see(weights.variables, batch['image']))
    real = batch['mask'] > 0
    yield from zip(np.asarray(index)[real], score[real], strict=True)
