"""Records of which another part is seen each time: random resized crops."""

import numpy as np

from gswinrmt_jax.data import pictures
from gswinrmt_jax.data.records import Batch
from gswinrmt_jax.data.sources import Source


class Cropped:
  """Records that are decoded and cropped at random when they are gathered.

  Attributes:
    source: The records as they are stored.
    size: Height and width of the images.
    how: Areas and shapes of the crops.
    workers: Processes to decode in; 0 for none.
  """

  def __init__(
      self,
      source: Source,
      size: tuple[int, int],
      how: pictures.RandomCrop,
      workers: int = 0,
  ):
    self.source, self.size, self.how = source, size, how
    self.workers = workers

  def __len__(self) -> int:
    return len(self.source)

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width and channels of an image."""
    return *self.size, 3

  def gather(self, rows: np.ndarray, seed: int, positions: np.ndarray) -> Batch:
    """Returns a batch, of which seed and positions alone determine the crops.

    Args:
      rows: Of the records.
      seed: The run's.
      positions: Of each row in the stream of all that training sees, so that a
        record is cropped in another way each time it comes.

    Returns:
      'image' uint8 [b h w 3], 'label' int32 [b], 'box' float32 [b 4] (top,
      left, height, width in fractions of the picture) and 'row' int32 [b].

    Raises:
      UserError: If a record cannot be decoded; names it.
    """
    image = np.empty((len(rows), *self.image_shape), np.uint8)
    label = np.empty(len(rows), np.int32)
    box = np.empty((len(rows), 4), np.float32)
    for index, (picture, number) in enumerate(self.source.read(rows)):
      # A counter-based generator: its key alone says what it draws.
      key = np.array([seed, positions[index]], np.uint64)
      rng = np.random.Generator(np.random.Philox(key=key))
      image[index], box[index] = pictures.random_crop(
          picture, self.size, self.how, rng
      )
      label[index] = number
    row = np.asarray(rows, np.int32)
    return {'image': image, 'label': label, 'box': box, 'row': row}
