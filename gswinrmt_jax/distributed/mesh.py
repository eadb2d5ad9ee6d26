"""One mesh for one device or several, of one process or several.

Its two axes are `data` and `fsdp`. A batch is split over both, so that every
device has images of its own. The state is copied along `data`; along `fsdp` its
large arrays are split.
"""

import math
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import gradients

_AXES = ('data', 'fsdp')


class Devices:
  """Puts batches and states on all devices of all processes.

  Attributes:
    replicated: The sharding of what each device has a copy of.
    split: The sharding of batches: each device has a run of the images, in the
      order of the devices, so that a process has one too.
    split_steps: That of several batches, `[m b ...]`.
  """

  def __init__(self, data: int = 0, fsdp: int = 1):
    """Makes the mesh.

    Args:
      data: Its extent along `data`; 0 takes what `fsdp` leaves.
      fsdp: Its extent along `fsdp`; 1 splits no state.

    Raises:
      UserError: If that is not the number of devices, or processes have
        different numbers of them.
    """
    self._count, self._fsdp = len(jax.devices()), fsdp
    rest = data or self._count // max(fsdp, 1)
    if min(rest, fsdp) < 1 or rest * fsdp != self._count:
      raise UserError(
          f'config.mesh.data is {data} and config.mesh.fsdp {fsdp}: their '
          f'product must be {self._count}, the number of devices (data=0 takes '
          'what fsdp leaves)'
      )
    if jax.local_device_count() * jax.process_count() != self._count:
      raise UserError(
          f'{jax.process_count()} processes share {self._count} devices: each '
          'must have as many as the others'
      )
    # The default would be explicit axes, which linen layers cannot trace.
    mesh = jax.make_mesh((rest, fsdp), _AXES, axis_types=(AxisType.Auto,) * 2)
    self.replicated = NamedSharding(mesh, PartitionSpec())
    self.split = NamedSharding(mesh, PartitionSpec(_AXES))
    self.split_steps = NamedSharding(mesh, PartitionSpec(None, _AXES))

  def put_batch(self, batch: Any) -> Any:
    """Splits a batch over the devices, which have to divide it.

    Args:
      batch: Of several processes, each has its own run of the rows.
    """
    return _put(batch, self.split)

  def put_steps(self, batches: Any) -> Any:
    """Splits each of several batches, `[m b ...]`, as `put_batch` does one."""
    return _put(batches, self.split_steps)

  def rounded_up(self, batch_size: int) -> int:
    """Returns the least batch that divides over the devices, and is no less."""
    return -(-batch_size // self._count) * self._count

  def check_batch_size(
      self, batch_size: int, accumulate_steps: int = 1
  ) -> None:
    """Checks that a training batch divides, into whole pairs of images.

    Mixing pairs neighbours: no image then moves from one device to another.

    Args:
      batch_size: Images of a step.
      accumulate_steps: Parts that a step takes them in.

    Raises:
      UserError: If it does not.
    """
    if accumulate_steps < 1:
      raise UserError(
          f'config.accumulate_steps is {accumulate_steps}: must be at least 1'
      )
    parts = self._count * accumulate_steps
    if parts > 1 and batch_size % (2 * parts):
      raise UserError(
          f'config.batch_size is {batch_size}: must be a multiple of '
          f'{2 * parts}, two images for each of {self._count} devices times '
          f'config.accumulate_steps={accumulate_steps}'
      )

  def replicate(self, tree: Any) -> Any:
    """Puts a copy of all arrays, which each process has, on each device."""
    return _put(tree, self.replicated)

  def place(self, state: Any) -> Any:
    """Puts a state where `shardings` says."""
    return jax.device_put(state, self.shardings(state))

  def shardings(self, state: Any) -> Any:
    """Returns where the arrays of a state belong.

    Along `fsdp` arrays of more than 2^15 numbers are split in their longest
    dimension of those that it divides, the last of equally long ones. Others
    are copied; those of 2^15 and less are joined for the gradient's norm. It
    depends on the shape alone: an array, its moments and its average are split
    alike.

    Args:
      state: Arrays or shapes.
    """
    return jax.tree.map(lambda leaf: self._sharding(leaf.shape), state)

  def _sharding(self, shape):
    axes = [
        (extent, axis)
        for axis, extent in enumerate(shape)
        if extent % self._fsdp == 0
    ]
    small = math.prod(shape) <= gradients.SMALL
    if self._fsdp == 1 or not axes or small:
      return self.replicated
    _, longest = max(axes)
    spec = PartitionSpec(*[None] * longest, 'fsdp')
    return NamedSharding(self.replicated.mesh, spec)

  def whole(self, params: Any) -> Any:
    """Inside of a step: gathers what `fsdp` has split.

    Said here, since XLA might find it cheaper to gather activations.
    """
    if self._fsdp == 1:
      return params
    return jax.lax.with_sharding_constraint(params, self.replicated)

  def parts(self, grads: Any) -> Any:
    """Inside of a step: leaves to each device its part of the sums.

    They are whole before: else the split would go back into the layers, and cut
    across kernels that are computed as one.
    """
    if self._fsdp == 1:
      return grads
    return jax.lax.with_sharding_constraint(
        self.whole(grads), self.shardings(grads)
    )

  def target(self, shapes: Any) -> Any:
    """Returns the shapes as restore targets, placed as `shardings` says."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=self._sharding(leaf.shape)
        ),
        shapes,
    )


def _put(tree, sharding):
  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)
  return jax.tree.map(
      lambda local: jax.make_array_from_process_local_data(
          sharding, np.asarray(local)
      ),
      tree,
  )


def fetch(tree: Any) -> Any:
  """Returns the values of arrays, also of those that no process has whole.

  Every process has to call it: such arrays are copied to all, one at a time.
  """
  return jax.device_get(jax.tree.map(_whole, tree))


def _whole(array):
  if isinstance(array, jax.Array) and not (
      array.is_fully_addressable or array.is_fully_replicated
  ):
    whole = NamedSharding(array.sharding.mesh, PartitionSpec())
    copied = jax.jit(lambda x: x, out_shardings=whole)(array)
    return jax.device_get(copied)
  return array


def quick_compilation() -> dict[str, int | bool] | None:
  """Returns compiler options for what takes longer to compile than to run.

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
