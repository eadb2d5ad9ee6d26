"""Images that stay on the devices: batches are gathered there."""

from collections.abc import Callable
from typing import Any

import jax

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import records
from gswinrmt_jax.errors import UserError

_SHARE = 0.1  # of a device's memory that images take without being asked to


class Resident(records.Rows):
  """Records on the devices, a copy on each; batches name the rows.

  Attributes:
    arrays: 'image' uint8 [n h w 3] and 'label' int32 [n].
  """

  def __init__(self, source: records.Arrays, replicate: Callable[[Any], Any]):
    """Copies records to the devices.

    Args:
      source: The records, which need not be kept.
      replicate: Puts arrays on each device.
    """
    super().__init__(len(source), source.image_shape, source.source)
    self.arrays = replicate({'image': source.image, 'label': source.label})


def place(
    loaded: batches_lib.Records,
    storage: str,
    replicate: Callable[[Any], Any],
) -> batches_lib.Records | Resident:
  """Puts records on the devices if they belong there.

  Args:
    loaded: Records in host memory, or decoded as needed.
    storage: `config.data.storage`: 'device'; or 'auto', which puts them there
      if there is an accelerator of which they take a tenth at most.
    replicate: Puts arrays on each device.

  Raises:
    UserError: If the devices have no room.
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
  """Returns a batch, on the devices, with the images that it names.

  Args:
    batch: Has 'row' [b] if the records are resident; a row after the last one
      gets zeros.
    source: The records, wherever they are.
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
  """Returns the free bytes of an accelerator's memory, None for a CPU."""
  stats = jax.local_devices()[0].memory_stats()
  if not stats or 'bytes_limit' not in stats:
    return None
  return stats['bytes_limit'] - stats['bytes_in_use']
