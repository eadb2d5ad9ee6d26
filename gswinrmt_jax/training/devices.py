"""One mesh for one device or several: images are split, the state is not."""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


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

  def put_batch(self, batch: Any) -> Any:
    """Splits a batch over the devices; copies it where it does not divide."""
    size = len(jax.tree.leaves(batch)[0])
    sharding = self.replicated if size % self._count else self._split
    return jax.device_put(batch, sharding)

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
