r"""How little memory traffic a training step could have, from shapes alone.

Written before anything was compiled, as a yardstick. What it assumes:

- A *pass* is a product (linear layer, dense convolution), a depthwise
  convolution, the core of attention (scores, weights and mixing of both axes,
  kept on chip), or a LayerNorm, whose first output needs a whole row. A pass
  reads each of its inputs once and writes each of its outputs once.
- Elementwise work (bias, GELU, gate, rotation, LayerScale, stochastic depth,
  residuals, casts) and sums over tokens (gradients of biases and scales, the
  statistics of BatchNorm) are folded into a pass before or behind them. What a
  residual adds is read there.
- Backward, a product is two passes, for its input and its kernel; a depthwise
  convolution, the core and a LayerNorm are one. Nothing but the outputs of
  forward passes is kept: activations are computed again when they are read.
- Activations and their gradients have two bytes, unless said otherwise.
  Parameters are float32: read by the forward and the backward product (the cast
  is folded), and AdamW, at the end of the kernel's gradient, reads and writes
  the parameter and two moments: 8 + 24 = 32 bytes. Other parameters count as
  much.

So this can be approached, not reached. In units of T C, tokens by channels of
a block, with p projections of one input (q, k, v, and a gate or the second
value: 4 in the gated models), r the hidden ratio and u = 2 values of SwiGLU,
else 1 (x: input of the block, c: convolved hidden map):

    forward                                      backward
    position    x | y                       2    dy x | dx                   3
    norm        y | n                       2    dn y dx2 | dy               4
    projection  n | p maps              1 + p    p maps | dn, p maps n  2p + 2
    core        q k v.. | a             3 + u    q k v.. ds dv | 2 + u
                                                                        6 + 2u
    local       v.. | l                 1 + u    dl v.. | dv             2 + u
    pointwise   l a g | s                   4    ds | dl, ds l               4
    out         s y | x2                    3    dx2 s g | ds dg, dx2 s      7
    norm        x2 | n2                     2    dn2 x2 dx3 | dx2            4
    up          n2 | h                  1 + r    dh | dn2, dh n2        2 + 2r
    depthwise   h | c                      2r    dc ds h | dh               4r
    norm        c h | s                    3r    ds c | dc                  3r
    down        s x2 | x3               2 + r    dx3 | ds, dx3 s        2 + 2r

which is 27 + 7r forward and 47 + 11r backward in the Retention models. What a
component costs where another is off is in the code.
"""

import dataclasses
import itertools
import math

import jax

from gswinrmt_jax.models import factory
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.backbone import Backbone

_PARAMETER = 32  # bytes of a parameter, by the rule above


@dataclasses.dataclass(frozen=True)
class Ideal:
  """Bytes of one training step.

  Attributes:
    blocks: Of all blocks, without their parameters.
    convolutions: Of the stem and the convolutions between the stages.
    head: Of the head.
    parameters: Of reading and updating the parameters.
  """

  blocks: int
  convolutions: int
  head: int
  parameters: int

  @property
  def total(self) -> int:
    """The sum."""
    return sum(dataclasses.astuple(self))


def ideal(
    model: Backbone, batch: int, image_size: int, *, activation: int = 2
) -> Ideal:
  """Returns the ideal traffic of a step with AdamW.

  Args:
    model: With a head, stem and downsampling by convolutions.
    batch: Images.
    image_size: Their height and width.
    activation: Bytes of a number of a map; images count as half of one.

  Raises:
    ValueError: If the model has a part that was not derived.
  """
  arch = model.arch
  if (arch.stem, arch.downsample) != ('conv', 'conv') or not model.num_classes:
    raise ValueError(
        'Ideal bytes were derived for convolutional stems and downsampling, '
        'and with a head.'
    )
  extents = [_halved(image_size, 2 + stage) for stage in range(arch.stages)]
  maps = [n * n * c for n, c in zip(extents, arch.widths, strict=True)]
  blocks = sum(
      depth * math.ceil(block_passes(arch, stage) * tokens)
      for stage, (depth, tokens) in enumerate(
          zip(arch.depths, maps, strict=True)
      )
  )
  convolutions = _stem(image_size, arch.widths[0]) + sum(
      _convolution(inner, outer) for inner, outer in itertools.pairwise(maps)
  )
  variables = factory.variable_shapes(model, (image_size, image_size, 3))
  parameters = sum(
      math.prod(leaf.shape) for leaf in jax.tree.leaves(variables['params'])
  )
  return Ideal(
      blocks=activation * batch * blocks,
      convolutions=activation * batch * convolutions,
      head=activation * batch * _head(arch, maps[-1], extents[-1]),
      parameters=_PARAMETER * parameters,
  )


def block_passes(arch: Architecture, stage: int) -> float:
  """Returns the elements that a block reads and writes, over T C."""
  values = 1 + arch.swiglu
  maps = 2 + values + arch.gate
  ratio = arch.mlp_ratios[stage]
  elements = 2 + 4  # norm
  elements += (1 + maps) + (2 * maps + 2)  # projection
  elements += 3 + 4  # out, without gate
  elements += 2 + 4  # norm
  elements += (1 + ratio) + (2 + 2 * ratio)  # up
  elements += (2 + ratio) + (2 + 2 * ratio)  # down
  if arch.position_conv:
    elements += 2 + 3
  has_lce = arch.lce != 'none'
  elements += (3 + values) + (5 + 2 * values + has_lce)  # core; dl, where it is
  if has_lce:
    elements += (1 + values) + (2 + values)
  if arch.lce == 'pointwise':
    # Adds the core's output, and multiplies by the gate.
    elements += (3 + arch.gate) + 4
  elif has_lce or arch.gate:
    # The last of core and local adds the core's output, and multiplies.
    elements += has_lce + arch.gate
  elements += 3 * arch.gate  # backward of out: s and g read, dg written
  if arch.ffn_conv:
    elements += 2 * ratio + 4 * ratio
    # Without a norm, adding h is folded into the convolution.
    elements += (3 + 3) * ratio if arch.ffn_norm else -ratio
  else:
    elements += ratio  # backward of GELU, behind that of down
  return elements


def _halved(extent: int, times: int) -> int:
  for _ in range(times):
    extent = -(-extent // 2)
  return extent


def _convolution(inner: int, outer: int, *, first: bool = False) -> int:
  """Elements of a convolution with BatchNorm, `in` and `out` numbers a map.

  Forward in | z. Backward, what is in front of the BatchNorm comes from da and
  z wherever it is read: z for the two sums of the BatchNorm, behind what made
  da; da z | da_in; da z in. The first has no gradient of its input.
  """
  if first:
    return 2 * inner + (1 + 1 + 2) * outer
  return 3 * inner + (1 + 1 + 2 + 2) * outer


def _stem(image_size: int, width: int) -> int:
  once, twice = _halved(image_size, 1) ** 2, _halved(image_size, 2) ** 2
  half = width // 2
  # The image has a byte a value, half an activation.
  return (
      _convolution(3 * image_size**2 // 2, half * once, first=True)
      + _convolution(half * once, half * once)
      + _convolution(half * once, width * twice)
      + _convolution(width * twice, width * twice)
  )


def _head(arch: Architecture, tokens: int, extent: int) -> int:
  """LayerNorm and pooling: x |; x | dx. What is pooled does not count.

  With the projection: x | z; z; and z; z | dx; z x behind it.
  """
  if arch.head == 'norm':
    return tokens + 2 * tokens
  projected = extent**2 * arch.projection
  return (tokens + 2 * projected) + (2 * tokens + 3 * projected)
