"""The data-parallel mesh over all devices of all processes.

A batch is sharded over the devices. The state is replicated on every device.
"""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import counted

_AXIS = 'data'


class Devices:
  """Puts batches and states on all devices of all processes.

  Attributes:
    replicated: Sharding of arrays with a copy on each device.
    split: Sharding of batches. Each device has a contiguous slice of the
      images, in the order of the devices; so does each process.
  """

  def __init__(self):
    """Creates the mesh; all processes have the same number of devices."""
    self._count = len(jax.devices())
    # The default would be explicit axes, which linen layers cannot trace.
    mesh = jax.make_mesh((self._count,), (_AXIS,), axis_types=(AxisType.Auto,))
    self.replicated = NamedSharding(mesh, PartitionSpec())
    self.split = NamedSharding(mesh, PartitionSpec(_AXIS))

  def put_batch(self, batch: Any) -> Any:
    """Shards a batch over the devices, whose number must divide its size.

    With several processes, each passes its own slice of the batch.
    """
    return _put(batch, self.split)

  def replicate(self, tree: Any) -> Any:
    """Copies arrays to each device; each process must have all of them."""
    return _put(tree, self.replicated)

  def rounded_up(self, batch_size: int) -> int:
    """Rounds a batch size up to a multiple of the number of devices."""
    return -(-batch_size // self._count) * self._count

  def check_batch_size(
      self, batch_size: int, accumulate_steps: int = 1, *, pairs: bool
  ) -> None:
    """Checks that a training batch divides into equal parts.

    There is a part for each device and step of gradient accumulation.

    Args:
      batch_size: Images in a batch.
      accumulate_steps: As in the config.
      pairs: Whether each part has whole pairs of neighbours, which mixing
        needs: then no image moves between devices.

    Raises:
      UserError: If it does not.
    """
    parts = self._count * accumulate_steps
    multiple = 2 * parts if pairs and parts > 1 else parts
    if batch_size % multiple:
      # The batch size of a run that has begun cannot change.
      several = self._count > 1
      fewer = '; or use fewer devices (CUDA_VISIBLE_DEVICES)' if several else ''
      raise UserError(
          f'config.batch_size is {batch_size}: must be a multiple of '
          f'{multiple}, {"two images" if pairs else "an image"} for each of '
          f'{counted(self._count, "device")} times '
          f'config.accumulate_steps={accumulate_steps}{fewer}'
      )

  def target(self, shapes: Any) -> Any:
    """Returns the shapes of a state as restore targets, with shardings."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=self.replicated
        ),
        shapes,
    )


def _put(tree, sharding):
  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)
  # JAX counts this call as an implicit transfer.
  with jax.transfer_guard('allow'):
    return jax.tree.map(
        lambda local: jax.make_array_from_process_local_data(
            sharding, np.asarray(local)
        ),
        tree,
    )
