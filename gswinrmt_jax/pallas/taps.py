"""Which token a tap of a convolution reads, in maps that are matrices."""

import dataclasses

from jaxtyping import Array, Bool, Int


@dataclasses.dataclass(frozen=True)
class Taps:
  """The offsets of a square kernel, in maps of one size one behind the other.

  Attributes:
    height: Of a map.
    width: Of a map.
    size: Side of the kernel, odd.
  """

  height: int
  width: int
  size: int

  @property
  def count(self) -> int:
    """Number of taps."""
    return self.size**2

  def neighbours(
      self, rows: Int[Array, ' r'], valid: Bool[Array, ' r'], sign: int = 1
  ) -> list[tuple[Int[Array, ' r'], Bool[Array, ' r']]]:
    """Returns, for each tap, the tokens at its offset, and which there are.

    Args:
      rows: Tokens, numbered through all maps.
      valid: Which of them there are.
      sign: 1 for what a convolution reads, -1 for what reads a token.
    """
    column = rows % self.width
    line = rows // self.width % self.height
    radius = self.size // 2
    found = []
    for tap in range(self.count):
      down = sign * (tap // self.size - radius)
      across = sign * (tap % self.size - radius)
      inside = (line + down >= 0) & (line + down < self.height)
      inside &= (column + across >= 0) & (column + across < self.width)
      found.append((rows + down * self.width + across, valid & inside))
    return found
