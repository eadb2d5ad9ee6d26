"""One data-parallel mesh, for one device or several, of one process or several.

A batch is split over the devices, so that each has separate images; of the
state every device has a copy.
"""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from gswinrmt_jax.errors import UserError

_AXIS = 'data'


class Devices:
  """Puts batches and states on all devices of all processes.

  Attributes:
    replicated: The sharding of arrays that each device has a copy of.
    split: The sharding of batches: each device has a run of the images, in the
      order of the devices, so that a process has one too.
  """

  def __init__(self, data: int = 0):
    """Makes the mesh.

    Args:
      data: Number of devices, as a check; 0 takes all there are.

    Raises:
      UserError: If that is not the number of devices, or processes have
        different numbers of them.
    """
    self._count = len(jax.devices())
    if data not in (0, self._count):
      raise UserError(
          f'config.mesh.data is {data}: must be {self._count}, the number of '
          'devices, or 0'
      )
    if jax.local_device_count() * jax.process_count() != self._count:
      raise UserError(
          f'{jax.process_count()} processes share {self._count} devices: each '
          'must have as many as the others'
      )
    # The default would be explicit axes, which linen layers cannot trace.
    mesh = jax.make_mesh((self._count,), (_AXIS,), axis_types=(AxisType.Auto,))
    self.replicated = NamedSharding(mesh, PartitionSpec())
    self.split = NamedSharding(mesh, PartitionSpec(_AXIS))

  def put_batch(self, batch: Any) -> Any:
    """Splits a batch over the devices, which have to divide it.

    Args:
      batch: Of several processes, each has its own run of the rows.
    """
    return _put(batch, self.split)

  def replicate(self, tree: Any) -> Any:
    """Puts a copy of all arrays, which each process has, on each device."""
    return _put(tree, self.replicated)

  def rounded_up(self, batch_size: int) -> int:
    """Rounds a batch size up to a multiple of the number of devices."""
    return -(-batch_size // self._count) * self._count

  def check_batch_size(
      self, batch_size: int, accumulate_steps: int = 1
  ) -> None:
    """Checks that a training batch divides into whole pairs of images.

    Mixing pairs neighbours: no image then moves from one device to another.

    Args:
      batch_size: Images per step.
      accumulate_steps: Parts that a step takes them in.

    Raises:
      UserError: If it does not.
    """
    parts = self._count * accumulate_steps
    if parts > 1 and batch_size % (2 * parts):
      raise UserError(
          f'config.batch_size is {batch_size}: must be a multiple of '
          f'{2 * parts}, two images for each of {self._count} devices times '
          f'config.accumulate_steps={accumulate_steps}'
      )

  def target(self, shapes: Any) -> Any:
    """Returns the shapes of a state as restore targets, one copy a device."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=self.replicated
        ),
        shapes,
    )


def _put(tree, sharding):
  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)
  # JAX counts this one as an implicit transfer.
  with jax.transfer_guard('allow'):
    return jax.tree.map(
        lambda local: jax.make_array_from_process_local_data(
            sharding, np.asarray(local)
        ),
        tree,
    )


def quick_compilation() -> dict[str, int | bool] | None:
  """Returns compiler options for programs that compile longer than they run.

  On a CPU LLVM then optimises nothing and, in JAX 0.10, which has two ways to
  make kernels, XLA takes the older: a third of the work for a training step.
  Nor does it cut a program into parts for LLVM, a tenth of what is left: other
  cores have another program to compile. Elsewhere there are none.
  """
  if jax.default_backend() != 'cpu':
    return None
  options = {
      'xla_backend_optimization_level': 0,
      'xla_cpu_parallel_codegen_split_count': 1,
  }
  if jax.__version_info__[:2] == (0, 10):
    options['xla_cpu_use_fusion_emitters'] = False
  return options
