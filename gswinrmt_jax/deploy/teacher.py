"""Computes token labels by a model with a dense head, the teacher."""

from collections.abc import Iterator
import itertools
import pathlib

import jax
import numpy as np

from gswinrmt_jax.augment.token_labels import extents
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, parallel, token_labels
from gswinrmt_jax.deploy.loaded_model import PixelModel
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.models import backbone
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights.load import Weights

_TOP = 5  # classes that a map stores for each token
_BATCH = 64


def write_token_labels(
    weights: Weights,
    folder: pathlib.Path,
    *,
    name: str,
    split: str,
    data_dir: str = '',
    image_size: int | None = None,
) -> None:
  """Writes the dense head's most probable classes for each record of a split.

  Images are resized to one size, ignoring aspect ratio. For each token, a map
  holds the largest values of the softmax of the dense logits.

  Args:
    weights: The teacher's weights.
    folder: The folder to write, see `token_labels.write`.
    name: The data set.
    split: The split of the data set, as `config.data.train_split`.
    data_dir: The TFDS data directory.
    image_size: Height and width; None takes the teacher's.

  Raises:
    UserError: If the teacher has no dense head or other classes than the data,
      if images are not a whole number of tokens, or if writing fails.
  """
  weights.check_is_classifier()
  size = weights.size(image_size)
  model = weights.card.make_model(size, dtype='float32')
  if not (model.num_classes and model.arch.dense_head):
    raise UserError(
        f'{weights.origin} has no dense head: the teacher must be a '
        'token-label model, such as rmt_s_tl'
    )
  extents(size, model.arch.stride)
  weights.check_classes(datasets.info(name, data_dir))
  if split == 'auto':
    split = datasets.own_splits(name, data_dir)['train']
  records = datasets.load(
      name, split, data_dir, image_size=size, storage='decode'
  )
  token_labels.write(
      folder,
      _see(model, weights, records),
      name=name,
      split=split,
      data_dir=data_dir,
  )
  Terminal().say(
      f'Written to {folder}: {len(records):,} label maps of {name} {split!r}.'
  )


def _see(
    model: backbone.Backbone, weights: Weights, records: batches_lib.Records
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the most probable classes and their probabilities, [h w 5] each."""
  card = weights.card
  top = min(_TOP, card.num_classes)
  pixel_model = PixelModel(model, card.mean, card.std)

  @jax.jit
  def see(variables, pixels):
    _, dense = pixel_model.apply(
        variables, pixels, method='class_and_dense_logits'
    )
    return jax.lax.top_k(jax.nn.softmax(dense), top)

  place = mesh.Devices()
  batches = batches_lib.eval_batches(
      records, batch_size=place.rounded_up(_BATCH)
  )
  seen = (
      see(weights.variables, place.put_batch(batch['image']))
      for batch in batches
  )
  maps = (
      (classes, probabilities)
      for score, index in evaluator.fetched(seen)
      for classes, probabilities in zip(index, score, strict=True)
  )
  count = len(records)
  maps = itertools.islice(maps, count)  # the rest is padding
  yield from parallel.with_bar(maps, 'label maps', count)
