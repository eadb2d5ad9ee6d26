"""The chain as a whole."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.augment import batch, crop, erase, mix, rand_augment
from gswinrmt_jax.errors import UserError

B, H, W, K = 7, 9, 14, 4  # odd and not square
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
ON = batch.Augment(
    crop_padding=4,
    flip=True,
    rand_augment_ops=2,
    rand_augment_magnitude=9.0,
    rand_augment_std=0.5,
    rand_augment_prob=0.5,
    erase_prob=0.25,
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    label_smoothing=0.1,
    num_classes=K,
    mean=MEAN,
    std=STD,
)
OFF = dataclasses.replace(
    ON,
    crop_padding=0,
    flip=False,
    rand_augment_ops=0,
    erase_prob=0.0,
    mixup_alpha=0.0,
    cutmix_alpha=0.0,
)
_augment = jax.jit(batch.augment, static_argnames='settings')


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
  pixels, target = _augment(jax.random.key(0), image, label, settings=OFF)
  expected = jax.jit(lambda image: batch.normalize(image, MEAN, STD))(image)
  np.testing.assert_array_equal(pixels, expected)
  hot = np.eye(K)[label]
  np.testing.assert_allclose(target, hot * 0.9 + 0.1 / K, rtol=1e-6)


def test_the_key_decides():
  image, label = _batch()

  def run(seed):
    return _augment(jax.random.key(seed), image, label, settings=ON)

  (pixels, target), (again, _), (other, _) = run(0), run(0), run(1)
  assert pixels.shape == image.shape and pixels.dtype == jnp.float32
  assert target.shape == (B, K) and target.dtype == jnp.float32
  np.testing.assert_array_equal(pixels, again)
  assert (np.asarray(pixels) != np.asarray(other)).mean() > 0.5
  assert bool(jnp.isfinite(pixels).all())
  np.testing.assert_allclose(target.sum(axis=1), 1, rtol=1e-5)


def test_float32_and_int32_also_under_x64():
  """By shape alone, with the types of every function on the way checked."""
  with jax.enable_x64(True):
    pixels, target = jax.eval_shape(
        lambda key, *args: batch.augment(key, *args, ON),
        jax.random.key(0),
        *_batch(),
    )
  assert pixels.dtype == target.dtype == jnp.float32


def test_each_image_has_draws_of_its_own():
  """Copies of an image become as many images."""
  image, _ = _batch()
  copies = np.repeat(image[:1], B, axis=0)
  pixels, target = _augment(
      jax.random.key(3), copies, np.ones(B, np.int32), settings=ON
  )
  distinct = np.unique(np.asarray(pixels).reshape(B, -1), axis=0)
  assert len(distinct) == B
  expected = np.repeat(np.asarray(target[:1]), B, axis=0)
  np.testing.assert_allclose(target, expected, rtol=1e-6)


def test_erasing_comes_after_normalising():
  """Its noise has deviation 1, whatever the deviation of the data set."""
  image = np.zeros((200, 16, 16, 3), np.uint8)
  settings = dataclasses.replace(OFF, erase_prob=1.0)
  pixels, _ = _augment(
      jax.random.key(4), image, np.zeros(200, np.int32), settings=settings
  )
  pixels = np.asarray(pixels)
  black = -np.array(MEAN, np.float32) / np.array(STD, np.float32)
  noise = pixels[(np.abs(pixels - black) > 1e-5).any(axis=-1)]
  np.testing.assert_allclose(noise.std(axis=0), 1, atol=0.05)


def test_fill_is_the_mean_colour():
  assert ON.fill == (128, 102, 76)  # 127.5 to the even, 102, 76.5 to the even


@pytest.mark.parametrize(
    'field, value, text',
    [
        (
            'erase_prob',
            1.5,
            'erase_prob is 1.5; set it to a number from 0 to 1',
        ),
        ('mixup_alpha', -0.1, 'mixup_alpha is -0.1; .* at least 0'),
        ('rand_augment_magnitude', 11.0, 'from 0 to 10'),
        ('label_smoothing', float('nan'), 'label_smoothing is nan'),
        ('crop_padding', -1, 'crop_padding is -1'),
    ],
)
def test_values_out_of_range_are_refused(field, value, text):
  with pytest.raises(UserError, match=text):
    dataclasses.replace(ON, **{field: value})


def test_a_label_map_is_flipped_with_its_image():
  """Dark on the left, where class 0 lies; bright on the right, class 1."""
  count = 30
  row = np.array([50, 200], np.uint8)[:, None]
  image = jnp.asarray(np.broadcast_to(row, (count, 4, 2, 3)))
  whole = jnp.tile(jnp.eye(2, K)[None, None], (count, 1, 1, 1))
  box = jnp.tile(jnp.array([[0.0, 0.0, 1.0, 1.0]]), (count, 1))
  settings = dataclasses.replace(OFF, flip=True)
  pixels, (of_image, of_tokens) = jax.jit(
      lambda key: batch.augment_with_map(
          key, image, whole, box, settings, extents=(2, 2)
      )
  )(jax.random.key(5))
  mirrored = np.asarray(pixels[:, 0, 0, 0] > pixels[:, 0, 1, 0])
  assert 5 < mirrored.sum() < 25
  hot = 0.9 * np.eye(K) + 0.1 / K
  for i in range(count):
    columns = hot[[1, 0]] if mirrored[i] else hot[[0, 1]]
    for y in range(2):
      np.testing.assert_allclose(of_tokens[i, y], columns, atol=1e-6)
    np.testing.assert_allclose(of_image[i], hot[:2].mean(0), atol=1e-6)


@pytest.mark.parametrize(
    'field', ['crop_padding', 'mixup_alpha', 'cutmix_alpha']
)
def test_what_a_label_map_does_not_follow_is_refused(field):
  settings = dataclasses.replace(OFF, **{field: getattr(ON, field)})
  with pytest.raises(UserError, match=f'{field} is .* 0 with token labels'):
    jax.eval_shape(
        lambda *args: batch.augment_with_map(
            jax.random.key(0), *args, settings, extents=(1, 1)
        ),
        _batch()[0],
        jnp.zeros((B, 1, 1, K)),
        jnp.zeros((B, 4)),
    )


def test_the_chain_is_its_stages_in_order():
  image, label = _batch()
  key = jax.random.key(3)

  @jax.jit
  def by_hand(image, label):
    crop_key, rand_key, erase_key, mix_key = jax.random.split(key, 4)
    x, _ = crop.crop_and_flip(crop_key, image, padding=4, flip=True)
    x = rand_augment.rand_augment(
        rand_key,
        x,
        ops=2,
        magnitude=9.0,
        std=0.5,
        prob=0.5,
        fill=(128, 102, 76),  # MEAN in grey levels
    )
    x = erase.random_erase(erase_key, batch.normalize(x, MEAN, STD), prob=0.25)
    target = mix.smooth_targets(label, num_classes=K, smoothing=0.1)
    return mix.mix(mix_key, x, target, mixup_alpha=0.8, cutmix_alpha=1.0)

  actual = _augment(key, image, label, settings=ON)
  for ours, expected in zip(actual, by_hand(image, label), strict=True):
    np.testing.assert_allclose(ours, expected, atol=1e-5)
