"""Images that are on the devices all the time."""

from collections.abc import Callable
from typing import Any

import jax

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import records
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import dispatch

_SHARE = 0.1  # of a device's memory that images take without being asked to


class Resident(records.Rows):
  """Records on the devices, a copy on each, of which batches name the rows.

  Attributes:
    arrays: 'image' uint8 [n h w 3] and 'label' int32 [n], there.
  """

  def __init__(self, of: records.Arrays, replicate: Callable[[Any], Any]):
    """Copies them there.

    Args:
      of: The records, which need not be kept.
      replicate: Puts arrays on each device.
    """
    super().__init__(len(of), of.image_shape, of.source)
    self.arrays = replicate({'image': of.image, 'label': of.label})


def place(
    loaded: batches_lib.Records | batches_lib.Cropped,
    storage: str,
    replicate: Callable[[Any], Any],
) -> batches_lib.Records | batches_lib.Cropped | Resident:
  """Puts records on the devices if they are to be there.

  Args:
    loaded: As `inputs` returned them.
    storage: The recipe's: 'device'; or 'auto', which puts them there if there
      is an accelerator of which they take a tenth at most.
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


def arrays(of: Any) -> dict[str, jax.Array]:
  """Returns what of some records is on the devices, by name."""
  return of.arrays if isinstance(of, Resident) else {}


def complete(batch: dict[str, jax.Array], of: Any) -> dict[str, jax.Array]:
  """Returns a batch, on the devices, with what is there of its records."""
  return _complete(batch, of.arrays) if isinstance(of, Resident) else batch


_complete = jax.jit(dispatch.with_records)


def _room():
  """Returns the free bytes of an accelerator's memory, None of a CPU's."""
  stats = jax.local_devices()[0].memory_stats()
  if not stats or 'bytes_limit' not in stats:
    return None
  return stats['bytes_limit'] - stats['bytes_in_use']
