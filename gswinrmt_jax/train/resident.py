"""Images kept in device memory, where batches are gathered."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import records
from gswinrmt_jax.errors import UserError

_SHARE = 0.1  # largest share of free device memory that 'auto' uses for images


class Resident:
  """Records replicated on every device; batches only name rows.

  Attributes:
    arrays: 'image' uint8 [n h w 3] and 'label' int32 [n].
    image_shape: Height, width and channels of an image.
    source: The records as they are stored.
  """

  def __init__(self, loaded: records.Arrays, replicate: Callable[[Any], Any]):
    """Copies records to every device; the host's copy may then be freed."""
    self._count = len(loaded)
    self.image_shape, self.source = loaded.image_shape, loaded.source
    self.arrays = replicate({'image': loaded.image, 'label': loaded.label})

  def __len__(self) -> int:
    return self._count

  def gather(self, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the rows themselves: `gather` below reads the images."""
    return {'row': rows}


def place(
    loaded: batches_lib.Records, storage: str, replicate: Callable[[Any], Any]
) -> batches_lib.Records | Resident:
  """Copies records to the devices if `storage` asks for it.

  Args:
    loaded: Records in host memory, or decoded on demand.
    storage: `config.data.storage`. 'device' copies the records; 'auto' copies
      them if they take at most a tenth of an accelerator's free memory.
    replicate: Copies arrays to every device.

  Raises:
    UserError: If the records do not fit into a device's free memory.
  """
  if storage not in ('device', 'auto'):
    return loaded
  size = loaded.image.nbytes
  room = _room()
  if storage == 'auto' and (room is None or size > _SHARE * room):
    return loaded
  if room is not None and size > room:
    raise UserError(
        f'{len(loaded):,} images would take {size / 1e9:.1f} GB of the '
        f"device's memory, {room / 1e9:.1f} GB are free: set "
        'config.data.storage to memory or disk'
    )
  return Resident(loaded, replicate)


def gather(batch: dict[str, jax.Array], source: Any) -> dict[str, jax.Array]:
  """Adds images and labels to a batch on the devices, if they are resident.

  Args:
    batch: Has 'row' [b] if the records are resident. A row past the last record
      gets zeros.
    source: The records, in any storage.
  """
  if not isinstance(source, Resident):
    return batch
  return {**batch, **_rows(source.arrays, batch['row'])}


@jax.jit
def _rows(arrays, row):
  return {
      name: array.at[row].get(mode='fill', fill_value=0)
      for name, array in arrays.items()
  }


def _room():
  """Returns the free memory of an accelerator in bytes; None for a CPU."""
  stats = jax.local_devices()[0].memory_stats()
  if not stats or 'bytes_limit' not in stats:
    return None
  return stats['bytes_limit'] - stats['bytes_in_use']
