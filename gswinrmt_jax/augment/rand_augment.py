"""RandAugment (Cubuk et al. 2020) with timm's or torchvision's operations.

`timm` is `rand-m9-mstd0.5-inc1`, with which DeiT and Swin train: fifteen
operations whose strength grows with a normally distributed level, bicubic.
`torchvision` is `torchvision.transforms.RandAugment(2, 9)`: fourteen, one of
them the identity, all at one of 31 fixed strengths, nearest, filled with black.

Every image draws its own operations. Under `vmap` a `switch` would compute all
of them for each image; here they are three: one table of grey levels, one blend
and one resampling, whose arguments depend on the operation.
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
  """The operations; the first fifteen are timm's, in the order of its draws."""

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


# Tables of grey levels, from the image's histogram and the amount.
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
# Levels of the image at factor 0.
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
  """One operation for each image, with the arguments of all three kinds.

  Attributes:
    op: A value of `Op`.
    amount: Argument of a table: bits to keep, threshold or addend.
    factor: Weight of the image in a blend.
    x_in: Columns that a geometric operation reads: places for timm's bicubic
      filter, whole pixels for torchvision's nearest.
    y_in: The same for rows.
  """

  op: Int32[Array, '*b']
  amount: Int32[Array, '*b']
  factor: Float32[Array, '*b']
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
  """Applies `ops` operations one after another, each drawn with replacement.

  Args:
    key: Source of the draws; each image has its own.
    image: The images.
    op_set: 'timm' or 'torchvision'.
    ops: Number of operations; 0 returns the images.
    magnitude: timm: mean of the level, 0 to 10. torchvision: the bin, a whole
      number from 0 to 30.
    std: timm: standard deviation of the level. torchvision has none.
    prob: timm: probability that a drawn operation is applied. torchvision
      applies all.
    fill: timm: colour that geometric operations bring in from outside, 0 to
      255. torchvision's is black.

  Returns:
    The augmented images.
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
  """Applies to each packed image its own operation, as Pillow does on uint8."""
  op, x_in, y_in = operation.op, operation.x_in, operation.y_in
  image = image_ops.unpack(packed)
  table = _table(image, operation, SETS[op_set])
  looked_up = image_ops.apply_table(packed, table)
  blended = image_ops.blend(_degenerate(image, op), image, operation.factor)
  if op_set == 'timm':
    moved = image_ops.resample_bicubic(packed, x_in, y_in, fill)
  else:
    moved = image_ops.resample_nearest(packed, x_in, y_in, (0, 0, 0))
  kinds = [_is_one_of(op, [*ops]) for ops in (_TABLES, _BLENDS, _MOVES)]
  one_hot = jnp.stack([op == Op.IDENTITY, *kinds], -1).astype(jnp.float32)
  return image_ops.choose(
      one_hot, packed, looked_up, image_ops.pack(blended), moved
  )


def _table(image, operation, ops):
  """Table of each image, `b 256 3`; zeros where its operation needs none."""
  counts = image_ops.histogram(image)
  used = [name for name in _TABLES if name in ops]
  tables = (_TABLES[name](counts, operation.amount) for name in used)
  one_hot = jnp.stack([operation.op == name for name in used], axis=-1)
  return image_ops.choose(
      one_hot.astype(jnp.float32),
      *(jnp.broadcast_to(table, counts.shape) for table in tables),
  )


def _degenerate(image, op):
  """Levels at factor 0 of each image's blend: `b h w 3`."""
  levels = jnp.zeros(image.shape, jnp.int32)
  for name, at_zero in _BLENDS.items():
    levels = jnp.where(
        (op == name)[:, None, None, None], at_zero(image), levels
    )
  return levels


def _is_one_of(op, names):
  """Whether each image's operation is among `names`: `b`."""
  return (op[:, None] == jnp.array(names, jnp.int32)[None]).any(axis=1)


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
  """Draws operations with level ~ N(magnitude, std^2), and sign.

  Returns:
    The operation (the identity with probability 1 - prob), its level, clipped
    to [0, 10], and its sign, 1 or -1 at even odds.
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
  """Maps [0, 1) to the standard normal distribution by its quantile function.

  Args:
    uniform: Draws from [0, 1), multiples of 2^-23.

  Returns:
    Normal draws, within 5.3 of 0; symmetric, since each draw counts as the
    middle of its step.
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
  """Returns what timm does at a level.

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

  The pixel at (x, y) of the output shows the input at

      x_in = cx + (x - cx) cos t - (y - cy) sin t + shear_x y + translate_x
      y_in = cy + (x - cx) sin t + (y - cy) cos t + shear_y x + translate_y

  with (cx, cy) the centre of the image; the middle of the first pixel is at
  (0.5, 0.5). A rotation by the angle t turns the image counter-clockwise about
  its centre; a shear keeps the upper left corner in place. At most one of the
  five differs from 0.
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
  """Draws operations, and 1 for the negative sign at even odds, else 0."""
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
  """Returns what torchvision does at a bin of its magnitudes.

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

  Pillow finds the nearest pixel in 16-bit fixed point, and so does this:

      x_in = (a x + b y + c) >> 16,   y_in = (d x + e y + f) >> 16
  """
  posterize = 8 - round(magnitude / 7.5)
  # A level is inverted unless it is below the threshold, 178.5 for example.
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
  """Evenly from 0 to `most`, in float32 as torchvision's are."""
  return float(np.float32(most * magnitude / 30))


@functools.cache
def _matrices(magnitude: int, height: int, width: int) -> np.ndarray:
  """Affine maps `[op, negative, (a b c d e f)]` in 16-bit fixed point."""
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
  # Pixel (x, y) is read at its middle, (x + 1/2, y + 1/2).
  matrices[..., 2] += (matrices[..., 0] + matrices[..., 1]) / 2
  matrices[..., 5] += (matrices[..., 3] + matrices[..., 4]) / 2
  return np.floor(matrices * 65536 + 0.5).astype(np.int32)
