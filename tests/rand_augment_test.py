"""RandAugment: every operation against timm's call of Pillow, and the draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageEnhance, ImageOps
import pytest

from gswinrmt_jax.augment import pixels, rand_augment
from gswinrmt_jax.augment.rand_augment import Op

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


def _oracle(image, op, level, sign):
  """The call of Pillow that timm makes, its level worked out as timm does."""
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


@pytest.fixture(scope='module')
def applied():
  """Every operation at every level and sign, in one batch."""
  cases = list(itertools.product(Op, LEVELS, (1.0, -1.0)))
  images = _images(len(cases))
  op, level, sign = (np.array(a) for a in zip(*cases, strict=True))
  factor = np.array([_factor(*case[1:]) for case in cases], np.float32)
  level, sign = level.astype(np.float32), sign.astype(np.float32)

  def run(image, op, level, sign, factor):
    x_in, y_in = rand_augment.sources(op, level, sign, height=H, width=W)
    packed = rand_augment.apply_op(
        pixels.pack(image),
        op,
        jnp.ones(op.shape, bool),
        level,
        factor,
        x_in,
        y_in,
        FILL,
    )
    return pixels.unpack(packed)

  out = jax.jit(run)(images, op.astype(np.int32), level, sign, factor)
  return cases, images, np.asarray(out)


@pytest.mark.parametrize('op', list(Op), ids=lambda op: op.name.lower())
def test_operation_is_pillows(applied, op):
  same, close = [], []
  for case, image, out in zip(*applied, strict=True):
    if case[0] == op:
      expected = _oracle(image, *case).astype(int)
      same.append((out == expected).mean())
      close.append((np.abs(out - expected) <= 1).mean())
  if op in MOVES:
    assert min(close) >= 0.99 and min(same) >= 0.97
  else:
    assert min(same) == 1.0


def test_factor_is_timms():
  level = np.array(LEVELS, np.float32)
  for sign in (1.0, -1.0):
    expected = [_factor(each, sign) for each in LEVELS]
    actual = rand_augment.factor(jnp.asarray(level), jnp.full_like(level, sign))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_draws_have_their_distributions():
  count = 60_000
  op, applied, level, sign = jax.jit(
      lambda key: rand_augment.draw(
          key, (2, count // 2), magnitude=9.0, std=0.5, prob=0.3
      )
  )(jax.random.key(0))
  op, applied, level, sign = (
      np.asarray(a).ravel() for a in (op, applied, level, sign)
  )
  # Five deviations of the counts.
  counts = np.bincount(op, minlength=15)
  np.testing.assert_allclose(counts, 4000, atol=5 * 61)
  np.testing.assert_allclose(applied.mean(), 0.3, atol=5 * 0.0019)
  np.testing.assert_allclose(sign.mean(), 0, atol=5 * 0.0041)
  assert set(np.unique(sign)) == {-1.0, 1.0} and level.max() == 10
  # Beyond 10, two deviations up, the level is clipped: 2.3 % of the draws.
  np.testing.assert_allclose((level == 10).mean(), 0.0228, atol=5 * 0.0006)
  np.testing.assert_allclose(np.median(level), 9.0, atol=0.02)
  np.testing.assert_allclose((level < 8.5).mean(), 0.1587, atol=5 * 0.0015)
  # No draw tells of another.
  numbers = np.stack([op, applied, level, sign])
  assert np.abs(np.corrcoef(numbers) - np.eye(4)).max() < 0.02


def test_rand_augment_chains_its_layers():
  """Two layers of the loop are the two operations drawn, one after another."""
  count, key = 24, jax.random.key(3)
  images = _images(count)
  settings = {'magnitude': 9.0, 'std': 0.5, 'prob': 0.5}
  out = jax.jit(
      lambda key, images: rand_augment.rand_augment(
          key, images, ops=2, fill=FILL, **settings
      )
  )(key, images)
  drawn = jax.device_get(rand_augment.draw(key, (2, count), **settings))
  for b in range(count):
    expected = images[b]
    for op, applied, level, sign in zip(*drawn, strict=True):
      if applied[b]:
        expected = _oracle(expected, op[b], float(level[b]), float(sign[b]))
    off = np.abs(np.asarray(out[b], int) - expected)
    # A level off in a first, geometric layer may grow in the second.
    assert (off <= 2).mean() >= 0.99, (b, drawn)
  unchanged = (np.asarray(out) == images).all(axis=(1, 2, 3))
  neither = ~drawn[1].any(axis=0)
  assert 0 < neither.sum() < count and unchanged[neither].all()


def test_without_operations_nothing_changes():
  images = jnp.asarray(_images(2))
  out = rand_augment.rand_augment(
      jax.random.key(0),
      images,
      ops=0,
      magnitude=9.0,
      std=0.5,
      prob=0.5,
      fill=FILL,
  )
  assert out is images
