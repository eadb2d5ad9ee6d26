"""Tests Mixup, CutMix, MixToken and their targets against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.augment import mix

B, H, W, K = 5, 8, 12, 7  # an odd batch: the last image has no neighbour


def test_smooth_targets_by_hand():
  """Each class gets 0.1 / 4; the labelled one gets 0.9 more."""
  target = mix.smooth_targets(jnp.array([2, 0]), num_classes=4, smoothing=0.1)
  assert target.dtype == jnp.float32
  expected = [[0.025, 0.025, 0.925, 0.025], [0.925, 0.025, 0.025, 0.025]]
  np.testing.assert_allclose(target, expected, rtol=1e-6)
  sharp = mix.smooth_targets(jnp.array([1]), num_classes=3, smoothing=0.0)
  np.testing.assert_array_equal(sharp, [[0, 1, 0]])


def _lambdas(count=6000, **alphas):
  keys = jax.random.split(jax.random.key(0), count)
  share, cut = jax.jit(jax.vmap(lambda key: mix.draw_lambda(key, **alphas)))(
      keys
  )
  return np.asarray(share), np.asarray(cut)


def test_lambda_has_the_moments_of_its_beta():
  """The variance of Beta(a, a) is 1 / (4 (2 a + 1))."""
  share, cut = _lambdas(mixup_alpha=0.2, cutmix_alpha=1.5)
  np.testing.assert_allclose(cut.mean(), 0.5, atol=5 * 0.0065)
  for alpha, part in (0.2, share[~cut]), (1.5, share[cut]):
    np.testing.assert_allclose(part.mean(), 0.5, atol=0.035)
    np.testing.assert_allclose(part.var(), 1 / (4 * (2 * alpha + 1)), rtol=0.06)


def test_cutmix_box_is_the_clipped_box():
  """A share of 0.75 halves the sides: 4 of 8 rows, 6 of 12 columns."""
  keys = jax.random.split(jax.random.key(1), 600)
  masks = np.asarray(
      jax.jit(
          jax.vmap(
              lambda key: mix.cutmix_box(
                  key, jnp.float32(0.75), height=H, width=W
              )
          )
      )(keys)
  )
  rows, columns = masks.any(axis=2), masks.any(axis=1)
  np.testing.assert_array_equal(masks, rows[:, :, None] & columns[:, None])

  def spans(side, half):
    centre = np.arange(side)[:, None]
    place = np.arange(side)
    return (place >= centre - half) & (place < centre + half)

  for seen, expected in (rows, spans(H, 2)), (columns, spans(W, 3)):
    kinds = {tuple(row) for row in expected}
    assert {tuple(row) for row in seen} == kinds
    # All centres are equally likely, within five standard deviations.
    counts = [(seen == row).all(axis=1).sum() for row in expected]
    mean = 600 / len(expected)
    np.testing.assert_allclose(counts, mean, atol=5 * np.sqrt(mean))


_box = jax.jit(mix.cutmix_box, static_argnames=('height', 'width'))


@pytest.mark.parametrize('share, most', [(1.0, 0), (0.0, H * W), (0.999, 0)])
def test_cutmix_box_at_the_ends(share, most):
  mask = _box(jax.random.key(2), jnp.float32(share), height=H, width=W)
  count = np.asarray(mask).sum()
  assert (count > 0) == (most > 0) and count <= most


def _batch():
  image = jax.random.normal(jax.random.key(3), (B, H, W, 3))
  label = jnp.array([0, 3, 6, 1, 5])
  return image, mix.smooth_targets(label, num_classes=K, smoothing=0.1)


PARTNER = np.array([1, 0, 3, 2, 4])


def _own_share(target, mixed_target):
  """Solves `mixed = share target + (1 - share) partner` for the first image."""
  apart = target[0] - target[1]
  return (mixed_target[:, 0] - target[1]) @ apart / (apart @ apart)


@functools.cache
def _mixtures(prob):
  """Returns a batch, and its mixtures under 200 keys with both methods on."""
  image, target = _batch()

  def run(key):
    return mix.mix(
        key, image, target, mixup_alpha=0.8, cutmix_alpha=0.8, prob=prob
    )

  keys = jax.random.split(jax.random.key(4), 200)
  mixtures = jax.jit(jax.vmap(run))(keys)
  return tuple(np.asarray(a) for a in (image, target, *mixtures))


@pytest.fixture(scope='module')
def mixed():
  """Returns these, the share of the first image, and which are of CutMix."""
  image, target, images, targets = _mixtures(1.0)
  np.testing.assert_allclose(targets.sum(axis=-1), 1, rtol=1e-5)
  share = _own_share(target, targets)
  from_one = (images == image) | (images == image[PARTNER])
  cut = from_one.all(axis=(1, 2, 3, 4))
  assert 65 < cut.sum() < 135
  return image, target, images, targets, share, cut


def test_mixup_mixes_image_and_target_alike(mixed):
  image, target, images, targets, share, cut = mixed
  assert 0.1 < share[~cut].std() < 0.5
  for i in np.flatnonzero(~cut):
    expected = image * share[i] + image[PARTNER] * (1 - share[i])
    np.testing.assert_allclose(images[i], expected, atol=1e-5)
    expected = target * share[i] + target[PARTNER] * (1 - share[i])
    np.testing.assert_allclose(targets[i], expected, atol=1e-6)


def test_cutmix_counts_the_pixels_that_stayed(mixed):
  image, target, images, targets, share, cut = mixed
  images, targets, share = images[cut], targets[cut], share[cut]
  own = images == image
  np.testing.assert_allclose(own[:, 0].mean(axis=(1, 2, 3)), share, atol=1e-5)
  np.testing.assert_array_equal(own[:, 0], own[:, 3])  # same box for all
  assert own[:, 4].all() and share.min() < 0.6
  expected = np.broadcast_to(target[4], targets[:, 4].shape)
  np.testing.assert_allclose(targets[:, 4], expected, rtol=1e-5)


def test_a_share_of_the_batches_is_mixed():
  """The probability must not change the other draws."""
  image, target, every, targets = _mixtures(1.0)
  _, _, some, some_targets = _mixtures(0.3)
  same = (some == every).all(axis=(1, 2, 3, 4))
  kept = (some == image).all(axis=(1, 2, 3, 4))
  assert (same | kept).all()
  np.testing.assert_allclose((~kept).mean(), 0.3, atol=0.13)  # 4 sigma
  np.testing.assert_array_equal(some_targets[~kept], targets[~kept])
  expected = np.broadcast_to(target, some_targets[kept].shape)
  np.testing.assert_array_equal(some_targets[kept], expected)


@pytest.mark.parametrize('alphas', [(0.8, 0.0), (0.0, 0.8)])
def test_a_batch_that_may_not_be_mixed_stays(alphas):
  """With both methods: `batch_test.test_the_chain_is_its_stages_in_order`."""
  image, target = _batch()
  mixed = jax.jit(
      lambda key, allowed: mix.mix(
          key,
          image,
          target,
          mixup_alpha=alphas[0],
          cutmix_alpha=alphas[1],
          allowed=allowed,
      )
  )
  for seed in range(4):
    same_image, same_target = mixed(jax.random.key(seed), False)
    np.testing.assert_array_equal(same_image, image)
    np.testing.assert_array_equal(same_target, target)
  # A CutMix box may be empty, but not for every seed.
  changed = [mixed(jax.random.key(seed), True)[1] for seed in range(4)]
  assert any((targets != target).any() for targets in changed)


def test_token_boxes_have_the_sizes_and_places_of_lambda():
  """Sides are int(7 r) and int(9 r), rounded down to even; r^2 ~ U(0, 1)."""
  keys = jax.random.split(jax.random.key(0), 2000)
  boxes = np.asarray(
      jax.jit(jax.vmap(lambda key: mix.token_box(key, height=7, width=9)))(keys)
  )
  assert boxes.shape == (2000, 7, 9)
  rows, columns = boxes.any(axis=2), boxes.any(axis=1)
  np.testing.assert_array_equal(boxes, rows[:, :, None] & columns[:, None])
  # Mean and mean square of the swapped share, by loops over lambda and the
  # box centres.
  steps, expected = 2000, np.zeros(2)
  for step in range(steps):
    ratio = np.sqrt((step + 0.5) / steps)  # 1 - lambda is uniform as well
    moments = np.ones(2)
    for side in (7, 9):
      half = int(side * ratio) // 2
      for power in (1, 2):
        covered = [
            ((min(c + half, side) - max(c - half, 0)) / side) ** power
            for c in range(side)
        ]
        moments[power - 1] *= np.mean(covered)
    expected += moments / steps
  share = boxes.mean((1, 2))
  found = [share.mean(), (share**2).mean()]
  # Two standard deviations of a mean of 2000 draws; the key is fixed.
  np.testing.assert_allclose(found, expected, atol=2 * share.std() / 2000**0.5)
  # Boxes reach both corners.
  assert boxes[:, 0, 0].any() and boxes[:, -1, -1].any()


def test_targets_of_token_boxes_by_hand():
  """Three of twelve tokens are the neighbour's."""
  box = jnp.zeros((3, 4), bool).at[1, 1:].set(True)
  target = jnp.array([[1.0, 0.0], [0.2, 0.8], [0.5, 0.5]])
  mixed = jax.jit(mix.blend_with_partner)(target, box.mean(dtype=jnp.float32))
  expected = [
      [0.75 * 1.0 + 0.25 * 0.2, 0.25 * 0.8],
      [0.75 * 0.2 + 0.25 * 1.0, 0.75 * 0.8],
      [0.5, 0.5],  # the last of an odd batch has no neighbour
  ]
  np.testing.assert_allclose(mixed, expected, rtol=1e-6)


@pytest.mark.parametrize('alphas', [(0.8, 0.0), (0.0, 0.8)])
def test_the_only_one_that_is_on_is_always_used(alphas):
  cut = jax.jit(
      lambda key: mix.draw_lambda(
          key, mixup_alpha=alphas[0], cutmix_alpha=alphas[1]
      )[1]
  )
  assert all(cut(jax.random.key(i)) == (alphas[1] > 0) for i in range(8))
