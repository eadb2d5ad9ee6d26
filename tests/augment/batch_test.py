"""Tests the whole augmentation against its stages, applied one by one."""

import functools

import jax
import jax.numpy as jnp
from ml_collections import FrozenConfigDict
import numpy as np
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import batch, mix, rand_augment, random_erasing

B, H, W, K = 7, 9, 14, 4  # odd and not square
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
ON = FrozenConfigDict(recipes.defaults('rmt_compact').augment)
OFF = FrozenConfigDict(
    {
        **ON,
        'crop_padding': 0,
        'flip': False,
        'rand_augment_ops': 0,
        'erase_prob': 0.0,
        'mixup_alpha': 0.0,
        'cutmix_alpha': 0.0,
    }
)
_DATA = {'mean': MEAN, 'std': STD, 'num_classes': K, 'smoothing': 0.1}
_augment = jax.jit(
    functools.partial(batch.augment, **_DATA), static_argnames='config'
)


def _batch():
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (B, H, W, 3), dtype=np.uint8)
  return image, np.arange(B, dtype=np.int32) % K


def test_normalize_is_float64s():
  image, _ = _batch()
  out = batch.normalize(jnp.asarray(image), MEAN, STD)
  expected = (image / 255 - np.array(MEAN)) / np.array(STD)
  assert out.dtype == jnp.float32
  np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_all_off_is_normalize_and_smoothed_targets():
  image, label = _batch()
  never = FrozenConfigDict({**OFF, 'mixup_alpha': 0.8, 'mix_prob': 0.0})
  expected = jax.jit(lambda image: batch.normalize(image, MEAN, STD))(image)
  hot = np.eye(K)[label]
  for config in (OFF, never):
    pixels, target = _augment(
        jax.random.key(0), image, label, config=config, mixing=True
    )
    np.testing.assert_array_equal(pixels, expected)
    np.testing.assert_allclose(target, hot * 0.9 + 0.1 / K, rtol=1e-6)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda image, label: (image / 255, label), 'float64: pixels must be'),
        (lambda image, label: (image, label[:, None]), r'need \(\d+,\), one'),
        (lambda image, label: (image, label[1:]), 'label has the shape'),
    ],
)
def test_other_batches_are_refused(change, said, as_users_run):
  with pytest.raises(ValueError, match=said):
    batch.augment(jax.random.key(0), *change(*_batch()), OFF, **_DATA)


def test_flips_top_to_bottom_are_of_half_of_the_images_and_change_no_draw():
  image, label = (np.repeat(array, 40, 0) for array in _batch())
  moved = {**OFF, 'crop_padding': 4, 'flip': True}
  plain, turned = (
      _augment(
          jax.random.key(0),
          image,
          label,
          config=FrozenConfigDict({**moved, 'flip_vertical': flip}),
      )[0]
      for flip in (False, True)
  )
  same = (turned == plain).all((1, 2, 3))
  flipped = (turned == plain[:, ::-1]).all((1, 2, 3))
  assert (same ^ flipped).all() and 0.4 < flipped.mean() < 0.6


def test_the_key_decides():
  image, label = _batch()

  def run(seed):
    key = jax.random.key(seed)
    return _augment(key, image, label, config=ON, mixing=True)

  (pixels, target), (again, _), (other, _) = run(0), run(0), run(1)
  assert pixels.shape == image.shape and pixels.dtype == jnp.float32
  assert target.shape == (B, K) and target.dtype == jnp.float32
  np.testing.assert_array_equal(pixels, again)
  assert (np.asarray(pixels) != np.asarray(other)).mean() > 0.5
  assert bool(jnp.isfinite(pixels).all())
  np.testing.assert_allclose(target.sum(axis=1), 1, rtol=1e-5)


def test_float32_and_int32_also_under_x64():
  """Traces only; the dtypes of every function on the way are checked."""
  with jax.enable_x64(True):
    pixels, target = jax.eval_shape(
        lambda key, *args: batch.augment(key, *args, ON, **_DATA),
        jax.random.key(0),
        *_batch(),
    )
  assert pixels.dtype == target.dtype == jnp.float32


# Settings that differ from those of `ON`.
OTHERS = {
    'rand_augment_set': 'torchvision',
    'rand_augment_std': 0.0,
    'rand_augment_prob': 1.0,
    'erase_prob': 0.5,
    'erase_area': (0.3, 0.4),
    'erase_aspect': (0.5, 0.7),
    'erase_fill': 'zeros',
}


@pytest.mark.parametrize(
    'changes',
    [{}, pytest.param(OTHERS, marks=pytest.mark.slow)],
    ids=['timm', 'torchvision'],
)
def test_the_chain_is_its_stages_in_order(changes):
  """Every setting reaches its stage; the mixing alone may be left out."""
  image, label = _batch()
  config = FrozenConfigDict({**ON, **changes})

  @jax.jit
  def by_hand(key, image, label):
    crop_key, rand_key, erase_key, mix_key = jax.random.split(key, 4)
    x, _ = batch.crop_and_flip(crop_key, image, padding=4, flip=True)
    x = rand_augment.rand_augment(
        rand_key,
        x,
        op_set=config.rand_augment_set,
        ops=2,
        magnitude=9.0,
        std=config.rand_augment_std,
        prob=config.rand_augment_prob,
        fill=(128, 102, 76),  # MEAN in grey levels
    )
    x = random_erasing.random_erase(
        erase_key,
        batch.normalize(x, MEAN, STD),
        prob=config.erase_prob,
        area=config.erase_area,
        aspect=config.erase_aspect,
        fill=config.erase_fill,
    )
    target = mix.smooth_targets(label, num_classes=K, smoothing=0.1)
    mixed = mix.mix(mix_key, x, target, mixup_alpha=0.8, cutmix_alpha=1.0)
    return (x, target), mixed

  for key in map(jax.random.key, (3, 5)):
    plain, mixed = by_hand(key, image, label)
    assert (plain[1] != mixed[1]).any()
    for mixing, expected in ((False, plain), (True, mixed)):
      found = _augment(key, image, label, config=config, mixing=mixing)
      for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_draws_are_those_of_earlier_versions():
  """A resumed run must continue with the augmentation it began with."""
  key = jax.random.key(7)
  # Pixels are numbered: the one in the middle identifies the crop window.
  numbers = np.arange(1, 129, 2, dtype=np.uint8).reshape(8, 8, 1)
  image = jnp.asarray(np.broadcast_to(numbers, (4, 8, 8, 3)))
  erased = {'area': (0.02, 1 / 3), 'aspect': (0.3, 1 / 0.3)}

  @jax.jit
  def draw(key, image):
    return (
        *batch.crop_and_flip(key, image, padding=4, flip=True),
        *rand_augment.draw_timm(key, (2, 4), magnitude=9.0, std=0.5, prob=0.5),
        random_erasing.random_box(key, 4, height=24, width=40, **erased),
        *mix.draw_lambda(key, mixup_alpha=0.8, cutmix_alpha=1.0),
        mix.cutmix_box(key, jnp.float32(0.5), height=6, width=9),
    )

  cropped, flipped, op, level, sign, box, share, cut, inside = draw(key, image)
  np.testing.assert_array_equal(flipped, [True, True, True, False])
  np.testing.assert_array_equal(cropped[:, 4, 4, 0], [107, 0, 39, 55])
  np.testing.assert_array_equal(op, [[10, 14, 4, 15], [15, 9, 15, 6]])
  expected = [
      [8.8726, 9.3659, 8.8287, 9.9756],
      [9.7575, 8.8693, 8.8077, 9.2329],
  ]
  np.testing.assert_allclose(level, expected, atol=1e-4)
  np.testing.assert_array_equal(sign, [[1, -1, 1, -1], [1, -1, 1, -1]])
  np.testing.assert_array_equal(
      box, [[9, 3, 15, 10], [3, 27, 6, 16], [10, 21, 7, 12], [22, 10, 15, 13]]
  )
  np.testing.assert_allclose(share, 0.348386, atol=1e-5)
  assert not cut
  expected = np.zeros((6, 9), bool)
  expected[3:, 3:] = True
  np.testing.assert_array_equal(inside, expected)
