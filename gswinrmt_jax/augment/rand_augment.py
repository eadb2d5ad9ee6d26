"""RandAugment (Cubuk et al. 2020) with the fifteen "increasing" operations.

This is timm's `rand-m9-mstd0.5-inc1`, the form that DeiT and Swin train with.
Every image draws its own operation. Under `vmap` a `switch` would compute all
fifteen for each image; here they are three: one table of grey levels, one blend
and one resampling, whose parameters depend on the operation.
"""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array
from jaxtyping import Bool
from jaxtyping import Float32
from jaxtyping import Int32
from jaxtyping import PRNGKeyArray
from jaxtyping import UInt8

from gswinrmt_jax.augment import affine
from gswinrmt_jax.augment import color
from gswinrmt_jax.augment import draws
from gswinrmt_jax.augment import lut


class Op(enum.IntEnum):
  """The operations; what the level, 0 to 10, does to each is in `apply_op`."""

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


_BLENDS = (Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS)
_MOVES = (
    Op.ROTATE,
    Op.SHEAR_X,
    Op.SHEAR_Y,
    Op.TRANSLATE_X,
    Op.TRANSLATE_Y,
)


def rand_augment(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    *,
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
    ops: Number of operations; 0 returns the images.
    magnitude: Mean of the level.
    std: Standard deviation of the level, which is clipped to [0, 10].
    prob: Probability that a drawn operation is applied.
    fill: Colour of what geometric operations bring in from outside.

  Returns:
    The augmented images.
  """
  drawn = draw(
      key, (ops, image.shape[0]), magnitude=magnitude, std=std, prob=prob
  )
  for op, applied, level, sign in zip(*drawn, strict=True):
    changed = apply_op(image, op, level, sign, fill)
    image = jnp.where(applied[:, None, None, None], changed, image)
  return image


def draw(
    key: PRNGKeyArray,
    shape: tuple[int, ...],
    *,
    magnitude: float,
    std: float,
    prob: float,
) -> tuple[
    Int32[Array, '*shape'],
    Bool[Array, '*shape'],
    Float32[Array, '*shape'],
    Float32[Array, '*shape'],
]:
  """Draws operations.

  Args:
    key: Source of the draws.
    shape: How many.
    magnitude: Mean of the level.
    std: Standard deviation of the level.
    prob: Probability that the operation is applied.

  Returns:
    The operation (a value of `Op`), whether it is applied, its level in
    [0, 10], and its sign, 1 or -1 at even odds.
  """
  which, apply, strength, side = jax.random.uniform(
      key, (4, *shape), dtype=jnp.float32
  )
  op = draws.integer(which, len(Op))
  level = jnp.clip(magnitude + std * draws.normal(strength), 0.0, 10.0)
  sign = jnp.where(side < 0.5, -1.0, 1.0).astype(jnp.float32)
  return op, apply < prob, level, sign


def apply_op(
    image: UInt8[Array, 'b h w 3'],
    op: Int32[Array, ' b'],
    level: Float32[Array, ' b'],
    sign: Float32[Array, ' b'],
    fill: tuple[int, int, int],
) -> UInt8[Array, 'b h w 3']:
  """Applies to each image its own operation, as Pillow does on uint8.

  | operation                               | level 0 -> 10                  |
  | --------------------------------------- | ------------------------------ |
  | auto contrast, equalize, invert         | no level                       |
  | posterize                               | keeps 4 -> 0 bits              |
  | solarize                                | inverts from 256 -> 0          |
  | solarize add                            | adds 0 -> 110 below 128        |
  | color, contrast, brightness, sharpness  | factor 1 -> 1.9, or 1 -> 0.1   |
  | rotate                                  | 0 -> 30 degrees, signed        |
  | shear                                   | 0 -> 0.3, signed               |
  | translate                               | 0 -> 0.45 of the side, signed  |

  Args:
    image: The images.
    op: A value of `Op` for each.
    level: Strength, 0 to 10.
    sign: 1 or -1; direction of the geometric operations and of the blends.
    fill: Colour of what geometric operations bring in from outside.

  Returns:
    The changed images.
  """
  looked_up = lut.apply_table(image, _table(image, op, level))
  factor = jnp.maximum(1.0 + sign * (level / 10) * 0.9, 0.1)
  blended = color.blend(_degenerate(image, op), image, factor)
  moved = affine.resample(image, _matrix(image, op, sign * level / 10), fill)
  out = jnp.where(_is_one_of(op, _BLENDS), blended, looked_up)
  return jnp.where(_is_one_of(op, _MOVES), moved, out)


def _table(image, op, level):
  """Table of each image: `b 256 3`."""
  counts = lut.histogram(image)
  part = level / 10
  tables = {
      Op.AUTO_CONTRAST: lut.autocontrast_table(counts),
      Op.EQUALIZE: lut.equalize_table(counts),
      Op.INVERT: lut.invert_table(),
      Op.POSTERIZE: lut.posterize_table(4 - _whole(part * 4)),
      Op.SOLARIZE: lut.solarize_table(256 - _whole(part * 256)),
      Op.SOLARIZE_ADD: lut.solarize_add_table(_whole(part * 110)),
  }
  table = jnp.zeros_like(counts)
  for name, choice in tables.items():
    table = jnp.where((op == name)[:, None, None], choice, table)
  return table


def _degenerate(image, op):
  """Levels at factor 0 of each image's blend: `b h w 3`."""
  choices = {
      Op.COLOR: color.luma(image),
      Op.CONTRAST: color.mean_luma(image),
      Op.SHARPNESS: color.smooth(image),
  }
  levels = jnp.zeros(image.shape, jnp.int32)  # black: brightness
  for name, choice in choices.items():
    levels = jnp.where((op == name)[:, None, None, None], choice, levels)
  return levels


def _matrix(image, op, signed):
  """Affine map of each image: `b 2 3`; `signed` is within [-1, 1]."""
  _, height, width, _ = image.shape

  def only(name, most):
    return jnp.where(op == name, signed * most, 0.0)

  return affine.affine_matrix(
      height=height,
      width=width,
      degrees=only(Op.ROTATE, 30.0),
      shear_x=only(Op.SHEAR_X, 0.3),
      shear_y=only(Op.SHEAR_Y, 0.3),
      translate_x=only(Op.TRANSLATE_X, 0.45 * width),
      translate_y=only(Op.TRANSLATE_Y, 0.45 * height),
  )


def _is_one_of(op, names):
  """Whether each image's operation is among `names`: `b 1 1 1`."""
  hit = jnp.zeros(op.shape, bool)
  for name in names:
    hit |= op == name
  return hit[:, None, None, None]


def _whole(value):
  return value.astype(jnp.int32)
