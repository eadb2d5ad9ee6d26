"""Tests average precision against pycocotools' own numbers."""

import json
import pathlib

import numpy as np
import pytest
import tiny_objects

from gswinrmt_jax.data import detection as data_lib
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import detection, evaluator

# Truth and detections as JSON, and pycocotools' scores.
_COCO = pathlib.Path(__file__).parents[1] / 'fixtures' / 'coco_scores.npz'


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_average_precision_equals_cocos(kind):
  """Crowds, images without objects, ties, a class that never occurs."""
  with np.load(_COCO) as file:
    arrays = dict(file)
  truth, found = (
      json.loads(str(arrays[f'coco/{name}_json']))
      for name in ('truth', 'detections')
  )
  scores = detection.average_precision(truth, found, kind)
  classes = [np.nan if x is None else x for x in scores.pop('class_ap')]
  *precision, recall = scores.values()
  stats = arrays[f'coco/{kind}_stats']  # the ninth is AR of 100 detections
  np.testing.assert_allclose([*precision], stats[:6], atol=1e-12)
  assert recall == pytest.approx(stats[8], abs=1e-12) != stats[0]
  np.testing.assert_allclose(
      classes, arrays[f'coco/{kind}_class_ap'], atol=1e-12
  )


def _perfect(records, order, limit=5, masks=False):
  """Yields outputs that find every object, in batches of one image."""
  for row in order:
    (width, height), objects = records.described[row]
    down, across = height / 2, width / 2  # seen at half of the size
    count = len(objects.labels)
    outputs = {
        'boxes': np.zeros((2, limit, 4), np.float32),
        'scores': np.zeros((2, limit), np.float32),
        'labels': np.zeros((2, limit), np.int32),
        'extents': np.array([[down, across], [9, 9]]),
        'row': np.array([row, 0]),
        'mask': np.array([1, 0]),
    }
    outputs['boxes'][0, :count] = objects.boxes / 2
    outputs['scores'][:, :count] = 0.9  # of the padding, too
    outputs['labels'][0, :count] = objects.labels
    if masks:
      outputs['masks'] = np.ones((2, limit, 28, 28), np.float32)
    yield outputs


_RECORDS = data_lib.AnnotatedImages(tiny_objects.SPLITS['val'])


def _scores(records=_RECORDS, rows=range(7), classes=2, **how):
  """Returns the scores of outputs that find every object."""
  collector = detection.Collector(records, classes)
  for outputs in _perfect(records, rows, **how):
    collector.add(outputs)
  return collector.scores()


def test_collecting_every_image_once_in_any_order():
  results = []
  for order in (range(7), [3, 1, 6, 0, 2, 5, 4]):
    collector = evaluator.TASKS['detection'].collector(_RECORDS, 2)
    for outputs in _perfect(_RECORDS, order, masks=True):
      collector.add(outputs)
    results.append((collector.results(), collector.scores()))
  assert results[0] == results[1]
  found, scores = results[0]
  assert scores['ap'] == scores['mask_ap'] == 1.0  # squares fill their boxes
  assert scores['images'] == 7 and scores['detections'] == 100
  assert len(found) == sum(len(x.labels) for _, x in _RECORDS.described)
  first = _RECORDS.described[0][1].boxes[0]
  assert found[0]['bbox'] == [*first[:2], *(first[2:] - first[:2])]
  assert found[0]['image_id'] == 1


def test_more_detections_than_a_hundred_are_counted():
  assert _scores(rows=[0], limit=300)['detections'] == 300


def test_all_of_120_objects_are_found():
  """By default, COCO counts no more than 100 detections of an image."""
  corners = 10 * np.argwhere(np.ones((12, 10)))
  boxes = np.concatenate([corners, corners + 8], 1).astype(np.float32)
  objects = data_lib.Objects(
      boxes,
      np.zeros(120, np.int32),
      np.zeros(120, bool),
      np.full(120, 64.0),
  )
  image = np.zeros((100, 120, 3), np.uint8)
  records = data_lib.AnnotatedImages(data_lib.Scenes([image], [objects]))
  assert _scores(records, rows=[0], limit=120)['ap'] == 1


def test_crowds_and_areas_are_those_of_the_data():
  """A crowd need not be found; an object of a large box may be small."""
  objects = data_lib.Objects(
      np.float32([[0, 0, 60, 60], [60, 60, 99, 99]]),
      np.zeros(2, np.int32),
      np.array([False, True]),
      np.array([5.0, 7.0]),
  )
  image = np.zeros((100, 100, 3), np.uint8)
  records = data_lib.AnnotatedImages(data_lib.Scenes([image], [objects]))
  (outputs,) = _perfect(records, [0])
  outputs['scores'][0, 1] = 0  # The crowd is not found.
  collector = detection.Collector(records, 2)
  collector.add(outputs)
  scores = collector.scores()
  assert scores['ap'] == scores['ap_small'] == pytest.approx(1)
  assert 'ap_large' not in scores
  said = detection.dataset(records.described, 2)['annotations']
  assert [x['area'] for x in said] == [5, 7]


@pytest.mark.parametrize(('what', 'count'), [('boxes', 6), ('scores', 7)])
def test_what_is_not_finite_finds_nothing_and_is_counted(what, count):
  """One image has no objects, and so no boxes that are used."""
  collector = detection.Collector(_RECORDS, 2)
  for outputs in _perfect(_RECORDS, range(7)):
    outputs[what][0, 0, ...] = np.nan
    collector.add(outputs)
  scores = collector.scores()
  assert scores['not_finite'] == count and scores['ap'] < 1
  assert evaluator.not_finite(scores, 'detection') == (
      f'boxes, scores or masks of {count} images are not finite'
  )


def test_masks_that_are_not_finite_are_counted():
  collector = detection.Collector(_RECORDS, 2)
  for outputs in _perfect(_RECORDS, range(7)):
    shape = (*outputs['scores'].shape, 4, 4)
    masks = np.where(
        outputs['scores'][..., None, None] > 0, np.nan, np.ones(shape)
    )
    collector.add({**outputs, 'masks': masks})
  assert collector.scores()['not_finite'] == 6


def test_without_detections_and_without_objects():
  assert _scores(rows=[])['ap'] == 0
  empty = data_lib.AnnotatedImages(tiny_objects.scenes(0, [0, 0]))
  with pytest.raises(UserError, match='have no objects'):
    detection.Collector(empty, 2)


def test_masks_are_scored_if_the_objects_have_them():
  scenes = tiny_objects.SPLITS['val']
  objects = [found._replace(masks=None) for found in scenes.objects]
  records = data_lib.AnnotatedImages(data_lib.Scenes(scenes.images, objects))
  scores = _scores(records, masks=True)
  assert scores['ap'] == 1 and 'mask_ap' not in scores


def test_the_table_has_every_class():
  scores = _scores(classes=3, masks=True)
  text = detection.table(scores, ('dark', 'light', 'none'))
  assert 'AP50' in text and 'AP, large' in text
  assert text.splitlines()[-1].split() == ['none', '-', '-']


def test_a_mask_is_encoded_where_its_box_is():
  mask = np.zeros((28, 28))
  mask[:14] = 1  # the upper half
  box = np.array([3.0, -4.0, 11.0, 12.0])  # begins above the image
  coded = detection.encode(mask, box, (20, 15))
  pixels = data_lib.pycocotools('mask').decode(coded)
  want = np.zeros((20, 15))
  want[:4, 3:11] = 1
  np.testing.assert_array_equal(pixels, want)


def test_a_mask_reaches_the_pixel_in_which_its_box_ends():
  """At one half, a cell is of the object."""
  pixels = detection.covered(
      np.full((28, 28), 0.5), np.array([2.0, 3.0, 5.0, 10.7]), (20, 15)
  )
  want = np.zeros((20, 15))
  want[3:11, 2:5] = 1
  np.testing.assert_array_equal(pixels, want)
