"""RandAugment (Cubuk et al. 2020) with timm's or torchvision's operations.

`timm` is `rand-m9-mstd0.5-inc1`, as in DeiT and Swin: fifteen operations whose
strength grows with a normally distributed level, with bicubic resampling.
`torchvision` is `torchvision.transforms.RandAugment(2, 9)`: fourteen
operations, including the identity, all at one of 31 fixed strengths, with
nearest-neighbour resampling and black fill.

Each image draws its own operations. Under `vmap`, a `switch` would compute all
of them for each image. Here only three are computed, whose arguments depend on
the operation: a lookup table of grey levels, a blend and a resampling.
"""

import enum
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, PRNGKeyArray, UInt8
import numpy as np

from gswinrmt_jax.augment import image_ops


class Op(enum.IntEnum):
  """The operations; the first fifteen are timm's, in timm's order."""

  AUTO_CONTRAST = 0
  EQUALIZE = 1
  INVERT = 2
  ROTATE = 3
  POSTERIZE = 4
  SOLARIZE = 5
  SOLARIZE_ADD = 6
  COLOR = 7
  CONTRAST = 8
  BRIGHTNESS = 9
  SHARPNESS = 10
  SHEAR_X = 11
  SHEAR_Y = 12
  TRANSLATE_X = 13
  TRANSLATE_Y = 14
  IDENTITY = 15


# Lookup tables of grey levels, from the image's histogram and the amount.
_TABLES = {
    Op.AUTO_CONTRAST: lambda counts, _: image_ops.autocontrast_table(counts),
    Op.EQUALIZE: lambda counts, _: image_ops.equalize_table(counts),
    Op.INVERT: lambda *_: image_ops.invert_table(),
    Op.POSTERIZE: lambda _, bits: image_ops.posterize_table(
        jnp.minimum(bits, 8)
    ),
    Op.SOLARIZE: lambda _, threshold: image_ops.solarize_table(threshold),
    Op.SOLARIZE_ADD: lambda _, add: image_ops.solarize_add_table(add),
}
# The degenerate image of each blend, at factor 0.
_BLENDS = {
    Op.COLOR: image_ops.luma,
    Op.CONTRAST: image_ops.mean_luma,
    Op.BRIGHTNESS: lambda image: jnp.zeros((1, 1, 1, 1), jnp.int32),
    Op.SHARPNESS: image_ops.smooth,
}
_MOVES = (Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y)
SETS = {
    'timm': tuple(Op)[:15],
    'torchvision': tuple(
        op for op in Op if op not in (Op.INVERT, Op.SOLARIZE_ADD)
    ),
}


class Operation(NamedTuple):
  """One operation for each image, with the arguments of all three kinds."""

  op: Int32[Array, '*b']  # values of `Op`
  amount: Int32[Array, '*b']  # of a table: bits to keep, threshold or addend
  factor: Float32[Array, '*b']  # weight of the image in a blend
  # Coordinates that a geometric operation reads: fractional for timm's bicubic
  # filter, whole pixels for torchvision's nearest neighbour.
  x_in: Array
  y_in: Array


def rand_augment(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    *,
    op_set: str,
    ops: int,
    magnitude: float,
    std: float,
    prob: float,
    fill: tuple[int, int, int],
) -> UInt8[Array, 'b h w 3']:
  """Applies `ops` operations in sequence, each drawn with replacement.

  Args:
    key: Source of the draws; each image has its own.
    image: The images.
    op_set: 'timm' or 'torchvision'.
    ops: Number of operations; 0 returns the images unchanged.
    magnitude: timm: mean of the level, 0 to 10. torchvision: the bin, an
      integer from 0 to 30.
    std: timm: standard deviation of the level. Unused by torchvision.
    prob: timm: probability that a drawn operation is applied. torchvision
      always applies it.
    fill: timm: colour outside the image in geometric operations, 0 to 255.
      torchvision fills with black.
  """
  if not ops:
    return image
  shape = ops, image.shape[0]
  size = {'height': image.shape[1], 'width': image.shape[2]}
  if op_set == 'timm':
    drawn = draw_timm(key, shape, magnitude=magnitude, std=std, prob=prob)
    operation = timm_operation(*drawn, **size)
  else:
    drawn = draw_torchvision(key, shape)
    operation = torchvision_operation(*drawn, int(magnitude), **size)

  def layer(packed, operation):
    return apply(packed, operation, op_set=op_set, fill=fill), None

  packed, _ = jax.lax.scan(layer, image_ops.pack(image), operation)
  return image_ops.unpack(packed)


def apply(
    packed: Int32[Array, 'b h w'],
    operation: Operation,
    *,
    op_set: str,
    fill: tuple[int, int, int],
) -> Int32[Array, 'b h w']:
  """Applies each packed image's operation, with the results of Pillow."""
  op, x_in, y_in = operation.op, operation.x_in, operation.y_in
  image = image_ops.unpack(packed)
  table = _table(image, operation, SETS[op_set])
  looked_up = image_ops.apply_table(packed, table)
  blended = image_ops.blend(_degenerate(image, op), image, operation.factor)
  if op_set == 'timm':
    moved = image_ops.resample_bicubic(packed, x_in, y_in, fill)
  else:
    moved = image_ops.resample_nearest(packed, x_in, y_in)
  kinds = ((Op.IDENTITY,), _TABLES, _BLENDS, _MOVES)
  one_hot = jnp.stack([jnp.isin(op, jnp.array([*ops])) for ops in kinds], -1)
  results = packed, looked_up, image_ops.pack(blended), moved
  return image_ops.choose(one_hot.astype(jnp.float32), *results)


def _table(image, operation, ops):
  """Returns each image's table, `b 256 3`; zeros if its operation has none."""
  counts = image_ops.histogram(image)
  used = [name for name in _TABLES if name in ops]
  tables = (_TABLES[name](counts, operation.amount) for name in used)
  one_hot = jnp.stack([operation.op == name for name in used], axis=-1)
  return image_ops.choose(
      one_hot.astype(jnp.float32),
      *(jnp.broadcast_to(table, counts.shape) for table in tables),
  )


def _degenerate(image, op):
  """Returns each image's degenerate image, `b h w 3`; zeros without a blend."""
  levels = jnp.zeros(image.shape, jnp.int32)
  for name, at_zero in _BLENDS.items():
    levels = jnp.where(
        (op == name)[:, None, None, None], at_zero(image), levels
    )
  return levels


# --- timm's set ---


def draw_timm(
    key: PRNGKeyArray,
    shape: tuple[int, ...],
    *,
    magnitude: float,
    std: float,
    prob: float,
) -> tuple[
    Int32[Array, '*shape'], Float32[Array, '*shape'], Float32[Array, '*shape']
]:
  """Draws operations, levels ~ N(magnitude, std^2), and signs.

  Returns:
    Operations (the identity with probability 1 - prob), levels clipped to
    [0, 10], and signs, 1 or -1 with equal probability.
  """
  which, apply, strength, side = jax.random.uniform(
      key, (4, *shape), dtype=jnp.float32
  )
  op = (which * len(SETS['timm'])).astype(jnp.int32)
  op = jnp.where(apply < prob, op, Op.IDENTITY)
  level = jnp.clip(magnitude + std * normal(strength), 0.0, 10.0)
  sign = jnp.where(side < 0.5, -1.0, 1.0).astype(jnp.float32)
  return op, level, sign


def normal(uniform: Float32[Array, '*shape']) -> Float32[Array, '*shape']:
  """Maps uniform draws to standard normal draws, by the quantile function.

  The uniform draws are multiples of 2^-23 in [0, 1). Each counts as the middle
  of its step, so the normal draws are symmetric, and within 5.3 of 0.
  """
  centred = 2 * (uniform + 2.0**-24) - 1
  return math.sqrt(2) * jax.lax.erf_inv(centred)


def timm_operation(
    op: Int32[Array, '*shape'],
    level: Float32[Array, '*shape'],
    sign: Float32[Array, '*shape'],
    *,
    height: int,
    width: int,
) -> Operation:
  """Returns timm's operations with their arguments at the given levels.

  | operation                               | level 0 -> 10                  |
  | --------------------------------------- | ------------------------------ |
  | auto contrast, equalize, invert         | no level                       |
  | posterize                               | keeps 4 -> 0 bits              |
  | solarize                                | inverts from 256 -> 0          |
  | solarize add                            | adds 0 -> 110 below 128        |
  | color, contrast, brightness, sharpness  | factor 1 -> 1 +- 0.9           |
  | rotate                                  | by 0 -> +-30 degrees           |
  | shear                                   | by 0 -> +-0.3                  |
  | translate                               | by 0 -> +-0.45 of the side     |

  The output pixel at (x, y) reads the input at

      x_in = cx + (x - cx) cos t - (y - cy) sin t + shear_x y + translate_x
      y_in = cy + (x - cx) sin t + (y - cy) cos t + shear_y x + translate_y

  with (cx, cy) the centre of the image, and (0.5, 0.5) the centre of its first
  pixel. A rotation by t turns the image counter-clockwise about its centre. A
  shear keeps the upper left corner fixed. At most one of t, the shears and the
  translations is nonzero.
  """
  part = level / 10

  def whole(value):
    return value.astype(jnp.int32)

  def only(name, most):
    return jnp.where(op == name, sign * part * most, 0.0)[..., None, None]

  lead = (1,) * op.ndim
  x = jnp.arange(width, dtype=jnp.float32).reshape(*lead, 1, width) + 0.5
  y = jnp.arange(height, dtype=jnp.float32).reshape(*lead, height, 1) + 0.5
  right, down = x - width / 2, y - height / 2
  angle = jnp.deg2rad(only(Op.ROTATE, 30.0))
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  x_in = width / 2 + right * cos - down * sin
  x_in += only(Op.SHEAR_X, 0.3) * y + only(Op.TRANSLATE_X, 0.45 * width)
  y_in = height / 2 + right * sin + down * cos
  y_in += only(Op.SHEAR_Y, 0.3) * x + only(Op.TRANSLATE_Y, 0.45 * height)
  amount = jnp.where(op == Op.POSTERIZE, 4 - whole(part * 4), 0)
  amount = jnp.where(op == Op.SOLARIZE, 256 - whole(part * 256), amount)
  amount = jnp.where(op == Op.SOLARIZE_ADD, whole(part * 110), amount)
  factor = jnp.maximum(1.0 + sign * part * 0.9, 0.1)
  return Operation(op, amount, factor, x_in, y_in)


# --- torchvision's set ---


def draw_torchvision(
    key: PRNGKeyArray, shape: tuple[int, ...]
) -> tuple[Int32[Array, '*shape'], Int32[Array, '*shape']]:
  """Draws operations and signs, 1 (negative) or 0 (positive) at even odds."""
  which, side = jax.random.uniform(key, (2, *shape), dtype=jnp.float32)
  ops = jnp.array(SETS['torchvision'], jnp.int32)
  negative = (side < 0.5).astype(jnp.int32)
  return ops[(which * len(ops)).astype(jnp.int32)], negative


def torchvision_operation(
    op: Int32[Array, '*shape'],
    negative: Int32[Array, '*shape'],
    magnitude: int,
    *,
    height: int,
    width: int,
) -> Operation:
  """Returns torchvision's operations with their arguments at a magnitude bin.

  | operation                               | bin 0 -> 30                    |
  | --------------------------------------- | ------------------------------ |
  | identity, auto contrast, equalize       | no magnitude                   |
  | posterize                               | keeps 8 -> 4 bits              |
  | solarize                                | inverts from 255 -> 0          |
  | color, contrast, brightness, sharpness  | factor 1 -> 1 +- 0.9           |
  | rotate                                  | by 0 -> +-30 degrees           |
  | shear                                   | by 0 -> +-0.3                  |
  | translate                               | by 0 -> +-150/331 of the side, |
  |                                         | down to whole pixels           |

  As in Pillow, the nearest pixel is computed in 16-bit fixed point:

      x_in = (a x + b y + c) >> 16,   y_in = (d x + e y + f) >> 16
  """
  posterize = 8 - round(magnitude / 7.5)
  # Round up: a level is inverted if it is not below the threshold (say, 178.5).
  solarize = math.ceil(8.5 * (30 - magnitude))
  amount = jnp.where(op == Op.POSTERIZE, posterize, solarize)
  change = _torchvision_magnitude(magnitude, 0.9)
  factor = jnp.array([1 + change, 1 - change], jnp.float32)[negative]
  matrix = jnp.array(_matrices(magnitude, height, width))[op, negative]
  a, b, c, d, e, f = (matrix[..., i, None, None] for i in range(6))
  lead = (1,) * op.ndim
  x = jnp.arange(width, dtype=jnp.int32).reshape(*lead, 1, width)
  y = jnp.arange(height, dtype=jnp.int32).reshape(*lead, height, 1)
  x_in, y_in = (a * x + b * y + c) >> 16, (d * x + e * y + f) >> 16
  return Operation(op, amount, factor, x_in, y_in)


def _torchvision_magnitude(magnitude, most):
  """Returns a bin's value, linear from 0 to `most`, in float32."""
  return float(np.float32(most * magnitude / 30))


@functools.cache
def _matrices(magnitude: int, height: int, width: int) -> np.ndarray:
  """Returns the maps `[op, negative, (a b c d e f)]` in 16-bit fixed point."""
  shear, degrees, right, down = (
      _torchvision_magnitude(magnitude, most)
      for most in (0.3, 30, 150 / 331 * width, 150 / 331 * height)
  )
  matrices = np.zeros((len(Op), 2, 6))
  matrices[:] = (1, 0, 0, 0, 1, 0)
  for negative, sign in enumerate((1, -1)):
    matrices[Op.SHEAR_X, negative, 1] = sign * shear
    matrices[Op.SHEAR_Y, negative, 3] = sign * shear
    matrices[Op.TRANSLATE_X, negative, 2] = -sign * int(right)
    matrices[Op.TRANSLATE_Y, negative, 5] = -sign * int(down)
    angle = math.radians(sign * degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = width / 2, height / 2  # the centre stays in place
    matrices[Op.ROTATE, negative] = (
        *(cos, -sin, x - x * cos + y * sin),
        *(sin, cos, y - x * sin - y * cos),
    )
  # Pixel (x, y) is read at its centre, (x + 1/2, y + 1/2).
  matrices[..., 2] += (matrices[..., 0] + matrices[..., 1]) / 2
  matrices[..., 5] += (matrices[..., 3] + matrices[..., 4]) / 2
  return np.floor(matrices * 65536 + 0.5).astype(np.int32)
