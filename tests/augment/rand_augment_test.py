"""Tests RandAugment's operations against Pillow, and its draws."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageEnhance, ImageOps
import pytest

from gswinrmt_jax.augment import image_ops, rand_augment
from gswinrmt_jax.augment.rand_augment import Op, SETS

H, W = 26, 37
FILL = (125, 3, 250)
LEVELS = (0.0, 3.3, 7.9, 8.6, 9.0, 9.97, 10.0)
MOVES = (
    Op.ROTATE,
    Op.SHEAR_X,
    Op.SHEAR_Y,
    Op.TRANSLATE_X,
    Op.TRANSLATE_Y,
)


def _images(count):
  rng = np.random.default_rng(0)
  y, x = np.mgrid[:H, :W]
  waves = np.stack([np.sin(x / 4), np.cos(y / 3), np.sin((x + y) / 6)], -1)
  noise = rng.normal(0, 30, (count, H, W, 3))
  return np.clip(110 + 70 * waves + noise, 0, 255).astype(np.uint8)


def _factor(level, sign):
  return max(0.1, 1.0 + sign * level / 10 * 0.9)


def _timm(image, op, level, sign):
  """Makes timm's call to Pillow, with the level computed as timm does."""
  picture = Image.fromarray(image)
  part = level / 10

  def enhance(kind):
    return kind(picture).enhance(_factor(level, sign))

  def transform(*matrix):
    return picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.BICUBIC,
        fillcolor=FILL,
    )

  def solarize_add():
    add = int(part * 110)
    return picture.point(
        [min(255, v + add * (v < 128)) for v in range(256)] * 3
    )

  def posterize():
    bits = 4 - int(part * 4)
    if not bits:
      return Image.new('RGB', picture.size)
    return ImageOps.posterize(picture, bits)

  calls = {
      Op.AUTO_CONTRAST: lambda: ImageOps.autocontrast(picture),
      Op.EQUALIZE: lambda: ImageOps.equalize(picture),
      Op.INVERT: lambda: ImageOps.invert(picture),
      Op.ROTATE: lambda: picture.rotate(
          sign * part * 30, Image.Resampling.BICUBIC, fillcolor=FILL
      ),
      Op.POSTERIZE: posterize,
      Op.SOLARIZE: lambda: ImageOps.solarize(picture, 256 - int(part * 256)),
      Op.SOLARIZE_ADD: solarize_add,
      Op.COLOR: lambda: enhance(ImageEnhance.Color),
      Op.CONTRAST: lambda: enhance(ImageEnhance.Contrast),
      Op.BRIGHTNESS: lambda: enhance(ImageEnhance.Brightness),
      Op.SHARPNESS: lambda: enhance(ImageEnhance.Sharpness),
      Op.SHEAR_X: lambda: transform(1, sign * part * 0.3, 0, 0, 1, 0),
      Op.SHEAR_Y: lambda: transform(1, 0, 0, sign * part * 0.3, 1, 0),
      Op.TRANSLATE_X: lambda: transform(1, 0, sign * part * 0.45 * W, 0, 1, 0),
      Op.TRANSLATE_Y: lambda: transform(1, 0, 0, 0, 1, sign * part * 0.45 * H),
  }
  return np.asarray(calls[op]())


def _torchvision(image, op, magnitude, sign):
  """Makes torchvision's call to Pillow, computed as in its source."""
  picture = Image.fromarray(image)

  def at(most, first=0.0):
    bins = np.linspace(first, most, 31, dtype=np.float32)
    return float(bins[magnitude]) * sign

  def enhance(kind):
    return kind(picture).enhance(1.0 + at(0.9))

  def affine(shear=(0.0, 0.0), translate=(0, 0), centre=(W * 0.5, H * 0.5)):
    """`functional._get_inverse_affine_matrix` without angle and scale."""
    sx, sy = (math.radians(math.degrees(math.atan(s))) for s in shear)
    a, b = 1.0, -math.tan(sx)
    c, d = math.sin(-sy) / math.cos(sy), 1 - math.tan(sx) * math.tan(-sy)
    (x, y), (right, down) = centre, translate
    matrix = [d, -b, 0.0, -c, a, 0.0]
    matrix[2] = x + matrix[0] * (-x - right) + matrix[1] * (-y - down)
    matrix[5] = y + matrix[3] * (-x - right) + matrix[4] * (-y - down)
    return picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.NEAREST,
        fillcolor=(0, 0, 0),
    )

  calls = {
      Op.IDENTITY: lambda: picture,
      Op.SHEAR_X: lambda: affine(shear=(at(0.3), 0), centre=(0, 0)),
      Op.SHEAR_Y: lambda: affine(shear=(0, at(0.3)), centre=(0, 0)),
      Op.TRANSLATE_X: lambda: affine(translate=(int(at(150 / 331 * W)), 0)),
      Op.TRANSLATE_Y: lambda: affine(translate=(0, int(at(150 / 331 * H)))),
      Op.ROTATE: lambda: picture.rotate(
          at(30.0), Image.Resampling.NEAREST, fillcolor=(0, 0, 0)
      ),
      Op.BRIGHTNESS: lambda: enhance(ImageEnhance.Brightness),
      Op.COLOR: lambda: enhance(ImageEnhance.Color),
      Op.CONTRAST: lambda: enhance(ImageEnhance.Contrast),
      Op.SHARPNESS: lambda: enhance(ImageEnhance.Sharpness),
      Op.POSTERIZE: lambda: ImageOps.posterize(
          picture, 8 - round(magnitude / (30 / 4))
      ),
      Op.SOLARIZE: lambda: ImageOps.solarize(picture, abs(at(0.0, 255.0))),
      Op.AUTO_CONTRAST: lambda: ImageOps.autocontrast(picture),
      Op.EQUALIZE: lambda: ImageOps.equalize(picture),
  }
  return np.asarray(calls[op]())


@pytest.fixture(scope='module')
def timm_applied():
  """Applies every operation at every level and sign, in one batch."""
  cases = list(itertools.product(SETS['timm'], LEVELS, (1.0, -1.0)))
  images = _images(len(cases))
  op, level, sign = (np.array(a) for a in zip(*cases, strict=True))

  @jax.jit
  def run(images, op, level, sign, factor):
    operation = rand_augment.timm_operation(op, level, sign, height=H, width=W)
    # Rounded once from float64, as for Pillow.
    operation = operation._replace(factor=factor)
    return image_ops.unpack(
        rand_augment.apply(
            image_ops.pack(images), operation, op_set='timm', fill=FILL
        )
    )

  out = run(
      images,
      op.astype(np.int32),
      level.astype(np.float32),
      sign.astype(np.float32),
      np.array([_factor(*case[1:]) for case in cases], np.float32),
  )
  return cases, images, np.asarray(out)


@pytest.mark.parametrize('op', SETS['timm'], ids=lambda op: op.name.lower())
def test_timm_operation_is_pillows(timm_applied, op):
  same, close = [], []
  for case, image, out in zip(*timm_applied, strict=True):
    if case[0] == op:
      expected = _timm(image, *case).astype(int)
      same.append((out == expected).mean())
      close.append((np.abs(out - expected) <= 1).mean())
  if op in MOVES:
    assert min(close) >= 0.99 and min(same) >= 0.97
  else:
    assert min(same) == 1.0


def test_blend_factor_is_timms():
  level = np.array(LEVELS, np.float32)
  op = np.full(len(LEVELS), Op.COLOR, np.int32)

  @jax.jit
  def factor(*drawn):
    return rand_augment.timm_operation(*drawn, height=H, width=W).factor

  for sign in (1.0, -1.0):
    expected = [_factor(each, sign) for each in LEVELS]
    found = factor(op, level, np.full_like(level, sign))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


MAGNITUDES = (0, 1, 9, 14, 23, 30)


@pytest.fixture(scope='module')
def torchvision_applied():
  """Applies every operation in both directions, by magnitude, in one batch."""
  cases = list(itertools.product(SETS['torchvision'], (0, 1)))
  assert len(cases) == 28
  images = _images(len(cases) * len(MAGNITUDES))
  op, negative = np.array(cases, np.int32).T

  @jax.jit
  def run(images, op, negative):
    every = [
        rand_augment.torchvision_operation(
            op, negative, magnitude, height=H, width=W
        )
        for magnitude in MAGNITUDES
    ]
    operation = jax.tree.map(lambda *parts: jnp.concatenate(parts), *every)
    return image_ops.unpack(
        rand_augment.apply(
            image_ops.pack(images), operation, op_set='torchvision', fill=FILL
        )
    )

  out = np.asarray(run(images, op, negative))
  parts = (np.split(array, len(MAGNITUDES)) for array in (images, out))
  return cases, dict(zip(MAGNITUDES, zip(*parts, strict=True), strict=True))


@pytest.mark.parametrize('magnitude', MAGNITUDES)
def test_torchvision_operations_are_pillows(torchvision_applied, magnitude):
  """Exactly, including rotated and sheared images."""
  cases, by_magnitude = torchvision_applied
  images, out = by_magnitude[magnitude]
  for (op, negative), image, ours in zip(cases, images, out, strict=True):
    expected = _torchvision(image, op, magnitude, -1 if negative else 1)
    np.testing.assert_array_equal(ours, expected, f'{op.name} {negative}')


def test_draws_of_timm_have_their_distributions():
  count = 60_000
  op, level, sign = jax.jit(
      lambda key: rand_augment.draw_timm(
          key, (2, count // 2), magnitude=9.0, std=0.5, prob=0.3
      )
  )(jax.random.key(0))
  op, level, sign = (np.asarray(a).ravel() for a in (op, level, sign))
  # Five standard deviations of the counts.
  counts = np.bincount(op, minlength=16)
  np.testing.assert_allclose(counts[:15], 1200, atol=5 * 34)
  np.testing.assert_allclose(counts[15] / count, 0.7, atol=5 * 0.0019)
  np.testing.assert_allclose(sign.mean(), 0, atol=5 * 0.0041)
  assert set(np.unique(sign)) == {-1.0, 1.0} and level.max() == 10
  # Levels are clipped at 10, two standard deviations up: 2.3 % of the draws.
  np.testing.assert_allclose((level == 10).mean(), 0.0228, atol=5 * 0.0006)
  np.testing.assert_allclose(np.median(level), 9.0, atol=0.02)
  np.testing.assert_allclose((level < 8.5).mean(), 0.1587, atol=5 * 0.0015)
  # The draws are independent.
  applied = op != Op.IDENTITY
  assert np.abs(np.corrcoef([applied, level, sign]) - np.eye(3)).max() < 0.02
  drawn = np.stack([op, level, sign])[:, applied]
  assert np.abs(np.corrcoef(drawn) - np.eye(3)).max() < 0.04


def test_levels_of_timm_are_not_negative():
  _, level, _ = rand_augment.draw_timm(
      jax.random.key(0), (2, 99), magnitude=0.5, std=0.5, prob=1.0
  )
  assert level.min() == 0


def test_draws_of_torchvision_have_their_distributions():
  count = 56_000
  op, negative = jax.jit(
      lambda key: rand_augment.draw_torchvision(key, (2, count // 2))
  )(jax.random.key(0))
  op, negative = np.asarray(op).ravel(), np.asarray(negative).ravel()
  counts = np.bincount(op, minlength=16)
  assert counts[Op.INVERT] == counts[Op.SOLARIZE_ADD] == 0
  drawn = counts[list(SETS['torchvision'])]
  # Five standard deviations of a binomial count.
  np.testing.assert_allclose(drawn, 4000, atol=5 * 61)
  np.testing.assert_allclose(negative.mean(), 0.5, atol=5 * 0.0021)
  assert np.abs(np.corrcoef(op, negative)[0, 1]) < 0.02


def _chained(op_set, draw, **settings):
  """Returns images, what two layers make of them, and what these draw."""
  count, key = 24, jax.random.key(3)
  images = _images(count)
  layers = functools.partial(
      rand_augment.rand_augment, op_set=op_set, ops=2, fill=FILL, **settings
  )
  drawn = jax.jit(lambda key: draw(key, (2, count)))(key)
  return images, np.asarray(jax.jit(layers)(key, images)), jax.device_get(drawn)


def test_rand_augment_chains_its_layers():
  """Two layers apply the two drawn operations, one after the other."""
  settings = {'magnitude': 9.0, 'std': 0.5, 'prob': 0.5}
  draw = functools.partial(rand_augment.draw_timm, **settings)
  images, out, drawn = _chained('timm', draw, **settings)
  for b, expected in enumerate(images):
    for op, level, sign in zip(*drawn, strict=True):
      if op[b] != Op.IDENTITY:
        expected = _timm(expected, op[b], float(level[b]), float(sign[b]))
    off = np.abs(out[b].astype(int) - expected)
    # An error of one level in a geometric first layer may grow in the second.
    assert (off <= 2).mean() >= 0.99, (b, drawn)
  unchanged = (out == images).all(axis=(1, 2, 3))
  neither = (drawn[0] == Op.IDENTITY).all(axis=0)
  assert 0 < neither.sum() < len(images) and unchanged[neither].all()


def test_rand_augment_with_torchvisions_set_chains_its_layers():
  """Exactly, at magnitude 9: the operations applied are those drawn."""
  images, out, drawn = _chained(
      'torchvision',
      rand_augment.draw_torchvision,
      magnitude=9.0,
      std=0.0,
      prob=1.0,
  )
  for b, expected in enumerate(images):
    for op, negative in zip(*drawn, strict=True):
      expected = _torchvision(expected, op[b], 9, -1 if negative[b] else 1)
    np.testing.assert_array_equal(out[b], expected)
