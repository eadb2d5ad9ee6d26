"""Tests RoIAlign and the pasting of masks against torchvision's, in float64."""

import functools

import detection_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import roi_align

pytestmark = pytest.mark.usefixtures('float64')


@functools.partial(jax.jit, static_argnames=('bins', 'stride'))
def _pool(x, boxes, extents=None, *, bins, stride=1):
  """Pools all boxes from each image of a single level."""
  boxes = jnp.stack([boxes] * len(x))
  return roi_align.roi_align([x], boxes, extents, strides=[stride], bins=bins)


def _pool_rois(x, rois, bins):
  y = _pool(x, rois[:, 1:], bins=bins, stride=4)
  return y[rois[:, 0].astype(int), jnp.arange(len(rois))]


def test_roi_align(want):
  x, rois = reference.wide('align/x'), reference.wide('align/rois')
  for bins in (7, 14):
    y = _pool_rois(x, rois, bins)
    reference.compare(y, want[f'align/out{bins}_ratio0'])
  cotangent = reference.wide('align/out7_ratio0_cotangent')
  grads = jax.jit(
      jax.grad(lambda *args: (_pool_rois(*args, 7) * cotangent).sum(), (0, 1))
  )
  grad, of_boxes = grads(x, rois)
  reference.compare(grad, want['align/out7_ratio0_grad'], within=1e-8)
  assert not of_boxes.any()


def test_a_program_takes_any_number_of_images(as_users_run):
  (images,) = jax.export.symbolic_shape('b')
  shapes = (
      jax.ShapeDtypeStruct((images, 8, 8, 1), float),
      jax.ShapeDtypeStruct((images, 1, 4), float),
  )
  pool = jax.jit(
      lambda x, boxes: roi_align.roi_align(
          [x], boxes, None, strides=[1], bins=2
      )
  )
  read = jax.export.export(pool)(*shapes)
  x, box = jnp.arange(64.0).reshape(1, 8, 8, 1), jnp.array([[[1.0, 1, 6, 6]]])
  np.testing.assert_allclose(read.call(x, box), pool(x, box), atol=1e-12)


def test_the_level_of_a_box():
  levels = roi_align.level_of(reference.wide('align/level_boxes'), 4)
  np.testing.assert_array_equal(levels, reference.arrays()['align/levels'])


def test_extents_end_the_map():
  """A padded map gives what the bare one gives, for 40 random boxes."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(1, 19, 23, 2)))
  boxes = jnp.asarray(rng.uniform(-3, 25, size=(40, 4)))
  for height, width in ((11, 17), (1, 3)):
    want = _pool(x[:, :height, :width], boxes, bins=5)
    got = _pool(x, boxes, jnp.array([[height, width]]), bins=5)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_a_box_that_is_no_number_leaves_others_alone():
  x, box = jnp.ones((2, 8, 8, 1)), jnp.array([1.0, 1, 6, 6])
  boxes = jnp.stack([box, box.at[2].set(jnp.nan)])[:, None]
  pool = functools.partial(roi_align.roi_align, strides=[1], bins=2)
  found = jax.jit(pool)([x], boxes, None)
  np.testing.assert_allclose(found[0], 1, rtol=1e-12)


def test_many_boxes_are_pooled_in_parts():
  """300 boxes, as 300 times one box, with the gradient of the map."""
  rng = np.random.default_rng(3)
  x, weights = (jnp.asarray(rng.normal(size=(1, 6, 7, 2))) for _ in range(2))
  boxes = jnp.asarray(rng.uniform(0, 7, size=(300, 4)))

  def total(x, boxes):
    y = _pool(x, boxes, bins=2)
    return (y * weights[:, None, :2, :2]).sum(), y

  grad = jax.value_and_grad(total, has_aux=True)
  (_, y), got = grad(x, boxes)
  parts = [grad(x, boxes[i : i + 100]) for i in range(0, 300, 100)]
  want = jnp.concatenate([part[0][1] for part in parts], 1)
  np.testing.assert_allclose(y, want, rtol=0, atol=1e-12)
  want = sum(part[1] for part in parts)
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_samples_up_to_a_cell_outside_count():
  boxes = jnp.array([[-1.0, 0, 0, 1], [5, 0, 6, 1]])
  y = _pool(jnp.ones((1, 1, 5, 1)), boxes, bins=1)
  np.testing.assert_array_equal(y.ravel(), 1)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_places_are_not_rounded_to_the_dtype_of_the_maps(dtype):
  """bfloat16 would move the box from 200.4 to 200."""
  x = (jnp.arange(256) % 2)[None, None, :, None].astype(dtype)
  y = _pool(x, jnp.array([[200.4, 0, 201, 1]]), bins=1)
  np.testing.assert_allclose(y.astype(float), 0.2, rtol=0.005)


def test_half_of_a_cell_is_the_object():
  bitmap, frame = jnp.array([[[0, 1]]]), jnp.array([[0.0, 0, 2, 1]])
  box = jnp.array([[0.5, 0, 1.5, 1]])
  assert roi_align.mask_targets(bitmap, frame, box, bins=1).item() == 1


def test_pasting(want):
  masks, boxes, size = (want[f'paste/{k}'] for k in ('masks', 'boxes', 'shape'))
  got = roi_align.paste(
      np.float64(masks), np.float64(boxes), tuple(size.tolist())
  )
  reference.compare(got, want['paste/out'])


def test_bitmaps_of_the_objects_boxes_change_few_targets():
  """112 cells a side, of ellipses, against the bitmap of the whole image."""
  rng = np.random.default_rng(2)
  y, x = np.mgrid[:200, :300] + 0.5
  targets = jax.jit(functools.partial(roi_align.mask_targets, bins=28))
  changed = []
  for _ in range(8):
    centre, radius = rng.uniform((60, 90), (140, 210)), rng.uniform(20, 60, 2)
    box = np.concatenate([(centre - radius)[::-1], (centre + radius)[::-1]])
    inside = ((y - centre[0]) / radius[0]) ** 2 + (
        (x - centre[1]) / radius[1]
    ) ** 2 < 1
    cells = (np.arange(112) + 0.5) / 56 - 1
    crop = cells[:, None] ** 2 + cells**2 < 1
    roi = box + rng.uniform(-10, 10, 4)
    found = [
        targets(bitmap[None], frame[None], roi[None])
        for bitmap, frame in (
            (inside, np.array([0.0, 0, 300, 200])),
            (crop, box),
        )
    ]
    changed.append(abs(found[0] - found[1]).mean())
  assert 0 < np.mean(changed) < 0.005
