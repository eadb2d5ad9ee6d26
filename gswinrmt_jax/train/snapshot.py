"""A state as it is now, while training goes on in its memory."""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from gswinrmt_jax.distributed import mesh, processes

_USED = 0.9  # of a device's memory, at most


class Snapshots:
  """Keeps states, one at a time."""

  def __init__(self):
    self._fits = None  # whether devices have room for one; asked once

  def take(self, tree: Any) -> Callable[[], Any]:
    """Keeps the values of arrays, which may be donated as soon as this returns.

    They are copied on the devices, behind what these were given to do so far,
    and come to the host when they are asked for, beside what is computed
    meanwhile: nobody waits. If the first does not fit beside the most that was
    in use before it, none is copied, and each is waited for at once.

    Every process has to call this, and what it returns.

    Args:
      tree: Arrays on the devices.

    Returns:
      What returns their values, on the host.
    """
    if self._fits is None:
      room, size = _room(), sum(map(_size, jax.tree.leaves(tree)))
      # All of several processes do the same, in the same order.
      short = room is not None and size > room
      self._fits = not processes.greatest(int(short))
    if self._fits:
      copy = _copy()(tree)
      return lambda: mesh.fetch(copy)
    values = mesh.fetch(tree)
    return lambda: values


@functools.cache
def _copy():
  """Returns a program; not every backend lets `device_put` copy in place."""
  return jax.jit(
      lambda tree: jax.tree.map(jnp.copy, tree),
      compiler_options=mesh.quick_compilation(),
  )


def _size(leaf):
  """Returns the bytes that an array takes on a device."""
  return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _room():
  """Returns the bytes that were never in use; None where nobody counts."""
  stats = jax.local_devices()[0].memory_stats()
  if not stats or 'bytes_limit' not in stats:
    return None
  return _USED * stats['bytes_limit'] - stats['peak_bytes_in_use']
