"""One mesh for one device or several: images are split, the state is not."""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gswinrmt_jax.errors import UserError


class Devices:
  """Puts batches and states on all devices of this process.

  Attributes:
    replicated: The sharding of the state: a copy on each device.
  """

  def __init__(self):
    self._count = len(jax.devices())
    # The default would be explicit axes, which linen layers cannot trace.
    mesh = jax.make_mesh((self._count,), ('data',), axis_types=(AxisType.Auto,))
    self.replicated = NamedSharding(mesh, PartitionSpec())
    self._split = NamedSharding(mesh, PartitionSpec('data'))
    self._split_steps = NamedSharding(mesh, PartitionSpec(None, 'data'))

  def put_batch(self, batch: Any) -> Any:
    """Splits a batch over the devices, which have to divide it."""
    return jax.device_put(batch, self._split)

  def put_steps(self, batches: Any) -> Any:
    """Splits each of several batches, `[m b ...]`, over the devices."""
    return jax.device_put(batches, self._split_steps)

  def rounded_up(self, batch_size: int) -> int:
    """Returns the least batch that divides over the devices, and is no less."""
    return -(-batch_size // self._count) * self._count

  def check_batch_size(self, batch_size: int) -> None:
    """Checks that a training batch divides over the devices.

    Raises:
      UserError: If it does not.
    """
    if batch_size % self._count:
      raise UserError(
          f'config.batch_size is {batch_size}: must be a multiple of the '
          f'{self._count} devices'
      )

  def replicate(self, tree: Any) -> Any:
    """Puts a copy of all arrays on each device."""
    return jax.device_put(tree, self.replicated)

  def target(self, shapes: Any) -> Any:
    """Returns the shapes as restore targets, a copy on each device."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=self.replicated
        ),
        shapes,
    )


def quick_compilation() -> dict[str, int] | None:
  """Returns compiler options for what runs only once.

  On a CPU, optimising the initialisation takes four times as long as doing it.
  """
  if jax.default_backend() != 'cpu':
    return None
  return {'xla_backend_optimization_level': 0}
