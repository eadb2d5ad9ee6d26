"""RandAugment (Cubuk et al. 2020) with the fifteen "increasing" operations.

This is timm's `rand-m9-mstd0.5-inc1`, the form that DeiT and Swin train with.
Every image draws its own operation. Under `vmap` a `switch` would compute all
fifteen for each image; here they are three: one table of grey levels, one blend
and one resampling, whose parameters depend on the operation.
"""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, PRNGKeyArray, UInt8

from gswinrmt_jax.augment import affine, color, draws, lut, pixels


class Op(enum.IntEnum):
  """The operations; the table in `apply_op` says what a level does to them."""

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


_TABLES = (
    Op.AUTO_CONTRAST,
    Op.EQUALIZE,
    Op.INVERT,
    Op.POSTERIZE,
    Op.SOLARIZE,
    Op.SOLARIZE_ADD,
)
_BLENDS = (Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS)
_MOVES = (Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y)


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
  if not ops:
    return image
  op, applied, level, sign = draw(
      key, (ops, image.shape[0]), magnitude=magnitude, std=std, prob=prob
  )
  _, height, width, _ = image.shape
  x_in, y_in = sources(op, level, sign, height=height, width=width)
  inputs = op, applied, level, factor(level, sign), x_in, y_in

  def layer(packed, inputs):
    return apply_op(packed, *inputs, fill), None

  return pixels.unpack(jax.lax.scan(layer, pixels.pack(image), inputs)[0])


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


def factor(
    level: Float32[Array, '*shape'], sign: Float32[Array, '*shape']
) -> Float32[Array, '*shape']:
  """Returns the factor of a blend: `1 + sign 0.9 level / 10`, at least 0.1."""
  return jnp.maximum(1.0 + sign * (level / 10) * 0.9, 0.1)


def sources(
    op: Int32[Array, '*shape'],
    level: Float32[Array, '*shape'],
    sign: Float32[Array, '*shape'],
    *,
    height: int,
    width: int,
) -> tuple[Float32[Array, '*shape h w'], Float32[Array, '*shape h w']]:
  """Returns the places that the geometric operations read at.

  Level 10 rotates by 30 degrees, shears by 0.3 and translates by 0.45 of the
  side; lower levels in proportion. Other operations stay where they are.

  Args:
    op: A value of `Op` for each image.
    level: Strength, 0 to 10.
    sign: 1 or -1, the direction.
    height: Rows of the images.
    width: Columns of the images.

  Returns:
    Columns and rows, see `affine.sources`.
  """

  def only(name, most):
    return jnp.where(op == name, sign * (level / 10) * most, 0.0)

  return affine.sources(
      height=height,
      width=width,
      degrees=only(Op.ROTATE, 30.0),
      shear_x=only(Op.SHEAR_X, 0.3),
      shear_y=only(Op.SHEAR_Y, 0.3),
      translate_x=only(Op.TRANSLATE_X, 0.45 * width),
      translate_y=only(Op.TRANSLATE_Y, 0.45 * height),
  )


def apply_op(
    packed: Int32[Array, 'b h w'],
    op: Int32[Array, ' b'],
    applied: Bool[Array, ' b'],
    level: Float32[Array, ' b'],
    factor: Float32[Array, ' b'],
    x_in: Float32[Array, 'b h w'],
    y_in: Float32[Array, 'b h w'],
    fill: tuple[int, int, int],
) -> Int32[Array, 'b h w']:
  """Applies to each image its own operation, as Pillow does on uint8.

  | operation                               | level 0 -> 10                  |
  | --------------------------------------- | ------------------------------ |
  | auto contrast, equalize, invert         | no level                       |
  | posterize                               | keeps 4 -> 0 bits              |
  | solarize                                | inverts from 256 -> 0          |
  | solarize add                            | adds 0 -> 110 below 128        |
  | color, contrast, brightness, sharpness  | see `factor`                   |
  | rotate, shear, translate                | see `sources`                  |

  Args:
    packed: The images, packed.
    op: A value of `Op` for each.
    applied: Where this is false, the image is left as it is.
    level: Strength, 0 to 10.
    factor: Factor of a blend, see the function of that name.
    x_in: Columns that a geometric operation reads at.
    y_in: Rows that a geometric operation reads at.
    fill: Colour of what geometric operations bring in from outside.

  Returns:
    The changed images, packed.
  """
  image = pixels.unpack(packed)
  looked_up = lut.apply_table(packed, _table(image, op, level))
  blended = color.blend(_degenerate(image, op), image, factor)
  moved = affine.resample(packed, x_in, y_in, fill)
  by = [_is_one_of(op, names) & applied for names in (_TABLES, _BLENDS, _MOVES)]
  weight = jnp.stack([~applied, *by], axis=-1).astype(jnp.float32)
  return pixels.choose(weight, packed, looked_up, pixels.pack(blended), moved)


def _table(image, op, level):
  """Table of each image, `b 256 3`; of no use where `op` needs none."""
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
  weight = [_is_one_of(op, [name]) for name in tables]
  weight = jnp.stack(weight, axis=-1).astype(jnp.float32)
  tables = (jnp.broadcast_to(a, counts.shape) for a in tables.values())
  return pixels.choose(weight, *tables)


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


def _is_one_of(op, names):
  """Whether each image's operation is among `names`: `b`."""
  return (op[:, None] == jnp.array(names, jnp.int32)[None]).any(axis=1)


def _whole(value):
  return value.astype(jnp.int32)
