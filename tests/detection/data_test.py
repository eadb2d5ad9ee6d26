"""Tests records of detection: resizing, flips, padding, masks, the source."""

import pickle
import sys

import numpy as np
import pytest
import tiny_objects

from gswinrmt_jax.data import batches, checks, datasets, detection
from gswinrmt_jax.errors import UserError


def _source(box=(10, 4, 30, 24), size=(60, 40), **changes):
  """Returns one image, black but for a white box."""
  width, height = size
  x0, y0, x1, y1 = box
  image = np.zeros((height, width, 3), np.uint8)
  image[y0:y1, x0:x1] = 255
  mask = image[..., 0] > 0
  objects = detection.from_masks([(1, mask)])._replace(**changes)
  return detection.Scenes([image], [objects])


class _Draws:
  """A generator that draws the same numbers each time."""

  def __init__(self, *draws):
    self._draws = draws

  def random(self, _):
    return np.array(self._draws)


@pytest.mark.parametrize('vertical', [False, True])
@pytest.mark.parametrize('horizontal', [False, True])
def test_boxes_and_masks_stay_where_the_object_is(horizontal, vertical):
  """An asymmetric object in an image that is resized, flipped and padded."""
  source = _source()
  source.images[0][14:24, 10:20] = 0  # its lower left quarter
  mask = source.images[0][..., 0] > 0
  objects = detection.from_masks([(1, mask)])
  source = detection.Scenes(source.images, [objects])
  records = detection.AnnotatedImages(
      source, (30, 20), detection.Training(True, True, mask_crop=16)
  )
  assert records.image_shape == (32, 32, 3)
  draws = _Draws(*(0.1 if flip else 0.9 for flip in (vertical, horizontal)))
  found = records.read(0, draws)
  assert found['extents'].tolist() == [20, 30]
  assert not found['image'][20:].any() and not found['image'][:, 30:].any()
  assert found['valid'].tolist() == [True] + 7 * [False]
  assert found['labels'][0] == 1
  x0, y0, x1, y1 = found['boxes'][0].astype(int)
  wanted = [5, 2, 15, 12]
  if horizontal:
    wanted[0], wanted[2] = 15, 25
  if vertical:
    wanted[1], wanted[3] = 8, 18
  assert [x0, y0, x1, y1] == wanted
  inside = found['image'][y0:y1, x0:x1, 0] > 127
  assert inside.sum() == 75 == (found['image'][..., 0] > 127).sum()
  quarter = found['bitmaps'][0].reshape(2, 8, 2, 8).mean((1, 3))
  empty = (int(not vertical), int(horizontal))
  want = np.ones((2, 2))
  want[empty] = 0
  np.testing.assert_array_equal(quarter, want)


def test_sides_are_scaled_by_their_own_factors():
  """A side of 33 pixels becomes floor(33 / 2 + 1/2) = 17, not 16.5."""
  source = _source((0, 0, 33, 20), size=(33, 40))
  records = detection.AnnotatedImages(
      source, (20, 20), detection.Training(False)
  )
  found = records.read(0, _Draws(1, 1))
  assert found['extents'].tolist() == [20, 17]
  np.testing.assert_allclose(found['boxes'][0], [0, 0, 17, 10])


def test_sizes_of_many_scales_are_those_of_the_release():
  """Of 640 x 480 pixels, and of a panorama, whose long side is limited."""
  rng = np.random.default_rng(0)
  views = [
      detection.draw_view((640, 480), (1333, 800), rng) for _ in range(4000)
  ]
  whole = [view for view in views if not view.crop]
  cropped = [view for view in views if view.crop]
  assert abs(len(whole) - 2000) < 150
  short_sides = {*range(480, 801, 32)}
  assert {view.size[1] for view in whole} == short_sides
  assert all(abs(view.size[0] - 4 / 3 * view.size[1]) <= 1 for view in whole)
  assert {view.whole for view in cropped} == {
      (533, 400),
      (667, 500),
      (800, 600),
  }
  crops = np.array([view.crop for view in cropped])
  wholes = np.array([view.whole for view in cropped])
  assert (crops >= 0).all() and (crops[:, 2:] <= wholes).all()
  sides = crops[:, 2:] - crops[:, :2]
  for axis, limits in ((0, {533, 600}), (1, {400, 500, 600})):
    for limit in limits:
      most = np.minimum(wholes[:, axis], 600) == limit
      found = sides[most, axis]
      assert (found.min(), found.max()) == pytest.approx((384, limit), abs=3)
      assert found.mean() == pytest.approx((384 + limit) / 2, abs=8)
      room = wholes[most, axis] - found
      at = crops[most, axis][room > 9] / room[room > 9]
      assert at.min() < 0.1 and at.max() > 0.9 and abs(at.mean() - 0.5) < 0.06
  assert {min(view.size) for view in cropped} == short_sides
  for view, (width, height) in zip(cropped, sides, strict=True):
    scale = min(view.size) / min(width, height)
    want = np.floor(np.multiply((width, height), scale) + 0.5)
    np.testing.assert_array_equal(view.size, want)
  wide = [detection.draw_view((4000, 400), (1333, 800), rng) for _ in range(99)]
  assert {max(view.size) for view in wide} == {1333}


def test_a_crop_keeps_what_is_seen_of_objects():
  """Twice the size, cropped, and twice the size again.

  Of 100 x 60 pixels, those from 25 to 55 and from 10 to 25 are seen.
  """
  view = detection.View((120, 60), (200, 120), (50, 20, 110, 50))
  stored = (100, 60)
  assert view.window(stored).tolist() == [25, 10, 55, 25]
  masks = np.zeros((3, 60, 100), bool)
  masks[0, 5:20, 20:45] = True
  masks[0, 10:15, 25:35] = False  # of what is seen, the upper left quarter
  masks[1, 30:60, 30:40] = True  # below the crop
  masks[2, 24:40, 50:52] = True
  objects = detection.from_masks([*enumerate(masks)])
  found = detection._truth(objects, stored, view, 4)
  assert found['labels'].tolist() == [0, 2]
  assert found['boxes'].tolist() == [[0, 0, 80, 40], [100, 56, 108, 60]]
  want = np.ones((2, 4, 4))
  want[0, :2, :2] = 0
  np.testing.assert_array_equal(found['bitmaps'], want)


def test_what_rounding_leaves_of_an_object_is_not_seen():
  boxes = np.float32([[0, 0, 10.0005, 9], [0, 0, 10.01, 9]])
  objects = detection.Objects(
      boxes, np.arange(2), np.zeros(2, bool), np.full(2, 90.0)
  )
  view = detection.View((10, 20), (20, 20), (10, 0, 20, 20))
  found = detection._truth(objects, (20, 20), view, 0)
  assert found['labels'].tolist() == [1]


def test_boxes_of_many_scales_are_where_the_object_is():
  source = _source(box=(25, 6, 65, 36), size=(90, 60))
  source.images[0][21:36, 25:45] = 0  # its lower left quarter
  mask = source.images[0][..., 0] > 0
  source = detection.Scenes(source.images, [detection.from_masks([(1, mask)])])
  records = detection.AnnotatedImages(
      source,
      (133, 80),
      detection.Training(True, True, multi_scale=True, mask_crop=16),
  )
  assert records.image_shape == (160, 160, 3)
  rng, sizes = np.random.default_rng(0), set()
  for _ in range(200):
    found = records.read(0, rng)
    sizes.add(tuple(found['extents'].tolist()))
    white = found['image'][..., 0] > 127
    (box,) = found['boxes'][found['valid']]
    bitmap = found['bitmaps'][0].astype(bool)
    x0, y0, x1, y1 = box
    rows, columns = (
        low + (np.arange(16) + 0.5) / 16 * (high - low)
        for low, high in ((y0, y1), (x0, x1))
    )
    seen = white[np.ix_(rows.astype(int), columns.astype(int))]
    assert (seen != bitmap).mean() < 0.15  # along edges
    assert 0.7 < white.sum() / (bitmap.mean() * (x1 - x0) * (y1 - y0)) < 1.4
  assert len(sizes) > 40
  with pytest.raises(UserError, match=r'fit_within, which is \(0, 0\)'):
    detection.AnnotatedImages(
        source, None, detection.Training(multi_scale=True)
    )


def test_crowds_and_objects_below_a_pixel_are_not_trained_on():
  boxes = np.array(
      [[0, 0, 9, 9], [3, 3, 8, 8], [5, 5, 5.5, 9], [5, 5, 6, 9]], np.float32
  )
  source = _source(
      boxes=boxes,
      labels=np.array([0, 1, 1, 0], np.int32),
      crowds=np.array([True, False, False, False]),
      areas=np.ones(4),
      masks=None,
  )
  records = detection.AnnotatedImages(
      source, training=detection.Training(False)
  )
  found = records.read(0, _Draws(1, 1))
  assert found['valid'].sum() == 2
  np.testing.assert_array_equal(found['boxes'][:2], boxes[[1, 3]])
  assert records.image_shape == (64, 64, 3)


def test_a_warning_counts_the_objects_that_become_too_small():
  """A third of the size: 6 x 30 pixels become 2 x 10, 9 x 9 become 3 x 3.

  The third box was small before, and the last one is a crowd.
  """
  boxes = [[0, 0, 6, 30], [0, 0, 9, 9], [0, 0, 2, 9], [0, 0, 8, 40]]
  source = _source(
      size=(90, 60),
      boxes=np.array(boxes, np.float32),
      labels=np.zeros(4, np.int32),
      crowds=np.array([False, False, False, True]),
      areas=np.ones(4),
      masks=None,
  )
  third = detection.AnnotatedImages(source, (30, 20))
  (line,) = checks.too_small(third)
  assert line.startswith(
      'warning: resizing images to fit 30 x 20 pixels makes 1 of 3 objects of '
      'train less than 3 pixels wide or high'
  )
  # Roots of 20, 9 and 2 without the crowd: 4.5, 3 and 1.4 pixels.
  said = (
      'objects have sides of 1 to 4 pixels after resizing, 80 % of them 2 to '
      '4; the smallest anchors have '
  )
  assert [*checks.object_sizes(third, 8.0)] == [f'{said}8']
  (line,) = checks.object_sizes(third, 12.0)
  assert line == f'{said}12: consider a lower config.detector.anchor_scale'
  assert not [*checks.too_small(detection.AnnotatedImages(source, (60, 60)))]
  assert not [*checks.too_small(detection.AnnotatedImages(source))]


def test_images_without_objects_may_be_left_out():
  source = tiny_objects.SPLITS['train']
  without = detection.Training(without_objects=False)
  records = detection.AnnotatedImages(source, (72, 64), without)
  assert len(records) == 8 and len(detection.AnnotatedImages(source)) == 10
  rng = np.random.default_rng(0)
  rows = [int(records.read(row, rng)['row']) for row in range(8)]
  assert rows == [0, 2, 3, 5, 6, 7, 8, 9]
  assert records.most == 8


def test_a_head_with_masks_needs_masks():
  source = _source(masks=None)
  with pytest.raises(UserError, match=r'boxes without masks.*head=retina'):
    detection.AnnotatedImages(source, training=detection.Training(mask_crop=28))


def test_scores_without_pycocotools_are_refused_at_the_start(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pycocotools.cocoeval', None)
  with pytest.raises(UserError, match=r'pip install "gswinrmt_jax\[detection'):
    datasets.load('digit_boxes', 'train', task='detection')


def test_runs_are_those_of_coco():
  coder = detection.pycocotools('mask')
  rng = np.random.default_rng(0)
  for shape in ((7, 5), (1, 9)):
    for share in (0.0, 0.3, 1.0):
      mask = rng.random(shape) < share
      runs = detection.runs(mask)
      coded = coder.frPyObjects(
          {'size': [*shape], 'counts': runs.tolist()}, *shape
      )
      np.testing.assert_array_equal(coder.decode(coded), mask)


def test_a_crop_samples_the_pixels_at_the_centres_of_its_cells():
  rng = np.random.default_rng(1)
  mask = rng.random((13, 17)) < 0.5
  box = np.array([-2.0, 3.4, 12.6, 15.0])  # beyond the image, too
  found = detection.crop(detection.runs(mask), 13, box, 8)
  for i, j in np.ndindex(8, 8):
    y = int(np.floor(3.4 + (i + 0.5) / 8 * 11.6))
    x = int(np.floor(-2 + (j + 0.5) / 8 * 14.6))
    inside = 0 <= y < 13 and 0 <= x < 17
    assert found[i, j] == (inside and mask[y, x])


@pytest.mark.parametrize('multi_scale', [False, True])
def test_training_draws_each_position_anew_and_the_same_again(multi_scale):
  records = detection.AnnotatedImages(
      tiny_objects.SPLITS['train'],
      (72, 64),
      detection.Training(multi_scale=multi_scale),
  )

  def take(start, count):
    stream = batches.train_batches(
        records, batch_size=5, seed=3, start_step=start
    )
    return [next(stream) for _ in range(count)]

  unbroken, resumed = take(0, 6), take(2, 4)
  for one, other in zip(unbroken[2:], resumed, strict=True):
    for name in one:
      np.testing.assert_array_equal(one[name], other[name])
  of_row = [
      found['boxes'][index].tobytes()
      for found in unbroken
      for index in np.flatnonzero(found['row'] == 2)
  ]
  assert len(of_row) == 3 and len(set(of_row)) > 1


def test_packaged_scenes():
  info = datasets.info('digit_boxes')
  assert info.task == 'detection' and len(info.class_names) == 10
  found = datasets.load('digit_boxes', 'val', task='detection')
  again = datasets.load('digit_boxes', 'val', task='detection')
  assert len(found) == 64 and detection.has_objects(found.described)
  counts = {len(objects.labels) for _, objects in found.described}
  assert {0, 1} < counts and max(counts) <= 5
  for row in range(64):
    image, objects = found.source[row]
    other, _ = again.source[row]
    assert image.tobytes() == other.tobytes()
    for box in objects.boxes:
      assert (box[:2] >= 0).all() and (box[2:] <= image.size).all()
  with pytest.raises(UserError, match='detection needs images with boxes'):
    datasets.open_source('digits', 'val', '', 'detection')


def test_pickled_records_draw_the_same():
  """Sizes, crops and flips, images with their boxes and masks.

  This is how a worker process gets its records.
  """
  source = datasets.open_source('digit_boxes', 'val', '', 'detection')
  how = detection.Training(True, True, multi_scale=True, mask_crop=14)
  records = detection.AnnotatedImages(source, (64, 64), how)
  found = []
  for each in (records, pickle.loads(pickle.dumps(records))):
    stream = batches.train_batches(each, batch_size=6, seed=1, start_step=3)
    found.append(next(stream))
    stream.close()
  assert {'image', 'boxes', 'bitmaps'} < found[0].keys() == found[1].keys()
  for name, array in found[0].items():
    np.testing.assert_array_equal(found[1][name], array)
