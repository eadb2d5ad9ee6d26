"""How a kernel is started, and how it reads and writes tiles of a matrix.

A map is a matrix here: a row for each token of all images, a column for each
channel. A program of a kernel takes tiles of it, whose sides are powers of two,
as Triton wants them.
"""

from collections.abc import Callable, Sequence
import math

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gswinrmt_jax.ops.arrays import wide
from gswinrmt_jax.ops.backend import platform

_LARGEST = 2**31  # numbers; Triton's offsets have 32 bits


def runs_here() -> bool:
  """Whether kernels are for what is traced for: one GPU.

  Of several each would do all the work, since nobody splits a kernel; a CPU
  would interpret it.
  """
  return platform() == 'gpu' and jax.device_count() == 1


def run(
    kernel: Callable[..., None],
    *arrays: Array,
    name: str,
    grid: tuple[int, ...],
    out: Sequence[jax.ShapeDtypeStruct],
    warps: int,
) -> tuple[Array, ...]:
  """Runs a kernel; interpreted on a CPU, to be tested there.

  Args:
    kernel: Takes a reference for each array and for each result.
    *arrays: What it reads.
    name: Of the kernel, in profiles.
    grid: How many programs, by axis.
    out: Shapes and dtypes of the results.
    warps: Of each program.

  Raises:
    ValueError: If an array is too large.
  """
  for array in (*arrays, *out):
    if array.size >= _LARGEST:
      raise ValueError(
          f'An array of {array.shape} has {_LARGEST:,} numbers or more, too '
          "many for attention_impl or ffn_impl='pallas': take fewer images at "
          'a time.'
      )
  return pl.pallas_call(
      kernel,
      name=name,
      grid=grid,
      out_shape=tuple(out),
      interpret=not runs_here(),
      compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
  )(*arrays)


def tile_of(channels: int, most: int) -> int:
  """Returns the largest power of two, `most` at most, that divides them."""
  return math.gcd(channels, most)


def span(start: Int[Array, ''] | int, length: int) -> Int[Array, ' n']:
  """Returns `length` numbers from `start` on."""
  return start + lax.iota(jnp.int32, length)


def load(
    ref,
    rows: Int[Array, ' r'],
    columns: Int[Array, ' c'],
    valid: Bool[Array, ' r'],
) -> Float[Array, 'r c']:
  """Reads a tile, in float32 at least; 0 in rows that are not valid."""
  # Pointers to what is not read stay inside of the array.
  index, mask = _index(jnp.where(valid, rows, 0), columns, valid)
  return wide(triton.load(ref.at[index], mask=mask, other=0.0))


def store(
    ref,
    rows: Int[Array, ' r'],
    columns: Int[Array, ' c'],
    valid: Bool[Array, ' r'],
    tile: Float[Array, 'r c'],
) -> None:
  """Writes the valid rows of a tile, in the dtype of the array."""
  # Beyond the end, where the interpreter writes nothing either.
  index, mask = _index(jnp.where(valid, rows, ref.shape[0]), columns, valid)
  triton.store(ref.at[index], tile.astype(ref.dtype), mask=mask)


def load_row(ref, index: Int[Array, ' n']) -> Float[Array, '1 n']:
  """Reads numbers of a vector, to meet the columns of a tile."""
  return triton.load(ref.at[index])[None]


def load_vector(
    ref, index: Int[Array, ' n'], valid: Bool[Array, ' n']
) -> Float[Array, ' n']:
  """Reads numbers of a vector; 0 where not valid."""
  return triton.load(ref.at[index], mask=valid, other=0.0)


def store_vector(
    ref,
    index: Int[Array, ' n'],
    vector: Float[Array, ' n'],
    valid: Bool[Array, ' n'] | None = None,
) -> None:
  """Writes the valid numbers of a vector."""
  triton.store(ref.at[index], vector.astype(ref.dtype), mask=valid)


def load_number(ref, index: Int[Array, '']) -> Float[Array, '']:
  """Reads a number of a vector."""
  return triton.load(ref.at[index])


def store_number(ref, index: Int[Array, ''], number: Float[Array, '']) -> None:
  """Writes a number of a vector."""
  triton.store(ref.at[index], number.astype(ref.dtype))


def wait_for_stores() -> None:
  """Lets no thread of the program read before all have written."""
  if runs_here():  # interpreted, a program is one thread
    triton.debug_barrier()


def _index(rows, columns, valid):
  shape = rows.size, columns.size
  index = (
      jnp.broadcast_to(rows[:, None], shape),
      jnp.broadcast_to(columns[None], shape),
  )
  return index, jnp.broadcast_to(valid[:, None], shape)
