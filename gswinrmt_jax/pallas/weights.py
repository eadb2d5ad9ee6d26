r"""From the scores of a tile to weights.

    softmax    A = softmax(s S + slope (i - j) + |i - j| log(gamma))
    sigmoid    A = sigmoid(s S + slope (i - j)) / M^ * gamma^|i - j|

as `ops.retention` and `ops.swat` have it, without the barriers there, which a
kernel cannot have. Differentiated automatically.
"""

import dataclasses

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.axial import MASKED
from gswinrmt_jax.pallas.lines import Tile


@dataclasses.dataclass(frozen=True)
class Weights:
  """A form of attention.

  Attributes:
    softmax: Whether it is the softmax; else the sigmoid.
    scale: What scores are multiplied by.
    absolute: Whether ALiBi takes `|i - j|`.
  """

  softmax: bool
  scale: float
  absolute: bool

  def forward(
      self,
      scores: Float[Array, 't t'],
      tile: Tile,
      size: int,
      log_decay: Float[Array, ' t'],
      slope: Float[Array, ''],
  ) -> Float[Array, 't t']:
    """Returns the weights of a tile; the rows of no token mean nothing.

    Args:
      scores: `q k^T`.
      tile: Whose.
      size: Effective window `M^`, which the sigmoid is divided by.
      log_decay: `log(gamma)`, one number for each query.
      slope: Of ALiBi.
    """
    distance = jnp.abs(tile.offsets).astype(scores.dtype)
    signed = distance if self.absolute else tile.offsets.astype(scores.dtype)
    logits = scores * self.scale + slope * signed
    if self.softmax:
      logits = jnp.where(
          tile.pairs, logits + log_decay[:, None] * distance, MASKED
      )
      largest = lax.stop_gradient(logits.max(1))
      powers = jnp.exp(logits - largest[:, None])
      return powers / powers.sum(1)[:, None]
    weights = jax.nn.sigmoid(logits) * jnp.exp(log_decay[:, None] * distance)
    return jnp.where(tile.pairs, weights / size, 0)
