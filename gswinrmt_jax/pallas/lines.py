"""Which tokens a tile of attention has: lines of a window, one after another.

A program has a window of one head. A tile of it is a few of its lines, rows in
the width pass and columns in the height pass, each filled up to a power of two,
so that the scores of a tile are those within its lines and others, which are
masked. Windows are padded, rolled and cut as `ops.window` has it.
"""

import dataclasses
from typing import NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from gswinrmt_jax.ops import window as window_lib
from gswinrmt_jax.ops.axial import HEIGHT, WIDTH

# Of a tile, and the longest line: its scores are to fit into registers.
TOKENS = 64


class Tile(NamedTuple):
  """The tokens of a tile.

  Attributes:
    rows: Their numbers, in all maps one behind the other.
    places: Their numbers in a map.
    valid: Which of them there are.
    pairs: Which of them may attend to which.
    offsets: How far behind the other each is in its line, `i - j`.
  """

  rows: Int[Array, ' t']
  places: Int[Array, ' t']
  valid: Bool[Array, ' t']
  pairs: Bool[Array, 't t']
  offsets: Int[Array, 't t']


@dataclasses.dataclass(frozen=True)
class Windows:
  """The windows of maps of one size.

  Attributes:
    extents: Columns and rows of a map, by axis: `WIDTH`, `HEIGHT`.
    sizes: Those of a window.
    shifts: By how much it is shifted along each.
  """

  extents: tuple[int, int]
  sizes: tuple[int, int]
  shifts: tuple[int, int]

  @property
  def across(self) -> int:
    """Windows beside each other."""
    return -(-self.extents[WIDTH] // self.sizes[WIDTH])

  @property
  def in_map(self) -> int:
    """Windows of a map."""
    return self.across * -(-self.extents[HEIGHT] // self.sizes[HEIGHT])

  def tiles(self, axis: int) -> int:
    """Tiles of a window in the pass."""
    return -(-self.sizes[1 - axis] * self._length(axis) // TOKENS)

  def tile(
      self, program: Int[Array, ''], axis: int, number: Int[Array, '']
  ) -> Tile:
    """Returns a tile of the window that a program has.

    Args:
      program: The number of the window, in all maps.
      axis: Of the pass.
      number: Of the tile in the window.
    """
    length = self._length(axis)
    index = lax.iota(jnp.int32, TOKENS)
    along = index % length
    line = number * (TOKENS // length) + index // length
    corner = program % self.in_map
    corner = corner % self.across, corner // self.across
    own, own_there = self._position(axis, corner[axis], along)
    other, other_there = self._position(1 - axis, corner[1 - axis], line)
    column, row = (own, other) if axis == WIDTH else (other, own)
    width, height = self.extents
    places = row * width + column
    valid = own_there & other_there
    pairs = line[:, None] == line[None]
    if self.sizes[axis] < self.extents[axis]:
      block = window_lib.block_index(own, self.sizes[axis], self.shifts[axis])
      pairs &= block[:, None] == block[None]
    return Tile(
        rows=program // self.in_map * (width * height) + places,
        places=places,
        valid=valid,
        pairs=pairs & valid[None],
        offsets=own[:, None] - own[None],
    )

  def _length(self, axis):
    """Tokens of a line, and what fills it up."""
    return 1 << (self.sizes[axis] - 1).bit_length()

  def _position(self, axis, corner, index):
    """Where in the map an index of a window is, and whether it is there."""
    size, extent = self.sizes[axis], self.extents[axis]
    padded = -(-extent // size) * size
    position = (corner * size + index + self.shifts[axis]) % padded
    return position, (index < size) & (position < extent)
