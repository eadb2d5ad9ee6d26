"""Tests the equations of detection against mmdetection's, in float64."""

import detection_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import anchors, assignment, nms
from gswinrmt_jax.ops import boxes as boxes_lib
from gswinrmt_jax.train import detection_losses

pytestmark = pytest.mark.usefixtures('float64')

_wide = reference.wide
_assign = jax.jit(assignment.assign)
_sample = jax.jit(assignment.sample, static_argnames=('count', 'positives'))
_suppress = jax.jit(nms.suppress, static_argnames='threshold')
_select = jax.jit(
    nms.select, static_argnames=('least_score', 'threshold', 'limit')
)
_CASES = ('random', 'ties', 'twins', 'near', 'none')


def test_anchors(want):
  octaves = tuple(4 * 2 ** (i / 3) for i in range(3))
  for name, first, scales in (('retina', 8, octaves), ('rpn', 4, (8,))):
    sizes = [tuple(each.tolist()) for each in want[f'anchors/{name}/sizes']]
    strides = [first * 2**level for level in range(5)]
    height, width = want['anchors/canvas']
    assert sizes == [(-(-height // s), -(-width // s)) for s in strides]
    grid = anchors.AnchorGrid(sizes, strides, scales)
    boxes, start = grid.boxes(), 0
    for level, (rows, columns) in enumerate(sizes):
      count = rows * columns * grid.shapes
      found, start = boxes[start : start + count], start + count
      reference.compare(
          found[: grid.shapes], want[f'anchors/{name}/base{level}']
      )
      if f'anchors/{name}/grid{level}' in want:
        reference.compare(found, want[f'anchors/{name}/grid{level}'])
    assert start == len(boxes)


def test_anchors_by_hand():
  """Row 1, column 2 of stride 8; ratio 2 of scale 4: 32 / sqrt 2 wide."""
  grid = anchors.AnchorGrid([(2, 3)], [8], (4.0, 8.0))
  half = 16 / np.sqrt(2), 16 * np.sqrt(2)
  want = [16 - half[0], 8 - half[1], 16 + half[0], 8 + half[1]]
  np.testing.assert_allclose(grid.boxes().reshape(2, 3, 6, 4)[1, 2, 4], want)
  valid = grid.valid(jnp.array([[8, 17], [9, 8]]))
  want = [[[1, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]]]
  np.testing.assert_array_equal(
      valid.reshape(2, 2, 3, 6), np.repeat(np.array(want)[..., None], 6, -1)
  )


def test_the_anchors_of_large_scores():
  grid = anchors.AnchorGrid([(1, 2), (1, 1)], [8, 16], (1.0,))
  scores = jnp.array([0, 3, 1, 9, 2, 2, 4, 0, 5.0])
  index, exist = grid.best(scores, 2)
  assert index.tolist() == [[3, 1], [8, 6]] and exist.all()
  index, exist = grid.best(scores, 5)
  assert index[0].tolist() == [3, 1, 4, 5, 2]
  assert index[1][:3].tolist() == [8, 6, 7]
  assert exist.tolist() == [[True] * 5, [True] * 3 + [False] * 2]


def test_boxes_inside_the_image():
  boxes = jnp.array([[0, 0, 7.9, 4.9], [0, 0, 8, 4], [-0.1, 0, 3, 3]])
  found = anchors.inside(boxes, jnp.array([[5, 8], [6, 9]]))
  assert found.tolist() == [[True, False, False], [True, True, False]]


def test_the_coder(want):
  boxes, delta = _wide('coder/boxes'), _wide('coder/delta')
  of_classes = _wide('coder/deltas_of_classes').reshape(40, -1, 4)
  size, gt = jnp.array([280, 390]), _wide('coder/gt')

  @jax.jit
  def run(boxes, gt, delta, of_classes):
    found = []
    for index in range(4):
      stds = tuple(want[f'coder/stds{index}'].tolist())
      encoded = boxes_lib.encode(boxes, gt, stds)
      decoded = boxes_lib.decode(boxes, delta, stds)
      each = boxes_lib.decode(boxes[:, None], of_classes, stds)
      each = boxes_lib.clip(each, size[None, None])
      results = {
          'encoded': encoded,
          'decoded': decoded,
          'decoded_clipped': boxes_lib.clip(decoded, size[None]),
          'decoded_of_classes': each.reshape(40, -1),
      }
      found.append((results, boxes_lib.decode(boxes, encoded, stds)))
    return found

  for index, (found, back) in enumerate(run(boxes, gt, delta, of_classes)):
    for name, got in found.items():
      reference.compare(got, want[f'coder/{name}{index}'])
    # Where the size ratio is not clipped, decoding is the inverse of encoding.
    np.testing.assert_allclose(back, gt, atol=1e-9)


def test_overlaps(want):
  a, b = _wide('iou/a'), _wide('iou/b')
  iou = jax.jit(boxes_lib.iou)(a[:, None], b[None])
  reference.compare(iou, want['iou/iou'])
  assert boxes_lib.is_empty(a)[1]
  true = _wide('giou/true')

  @jax.jit
  def run(pred):
    def loss(pred):
      giou = boxes_lib.giou(pred, true)
      return 10 * (1 - giou).sum() / 50, giou

    return jax.value_and_grad(loss, has_aux=True)(pred)

  (loss, giou), grad = run(_wide('giou/pred'))
  reference.compare(giou, want['giou/giou'])
  reference.compare(loss, want['giou/loss'])
  reference.compare(grad, want['giou/grad'], within=1e-8)


def _truth(boxes, rows=None):
  """Returns objects with rows of padding: empty boxes, and good ones."""
  rows = rows or len(boxes)
  padding = np.resize(np.array([[0, 0, 0, 0], [1, 1, 60, 60]]), (rows, 4))
  padding[: len(boxes)] = 0
  padded = padding + np.pad(boxes, ((0, rows - len(boxes)), (0, 0)))
  return assignment.Truth(
      jnp.asarray(padded, jnp.float64),
      jnp.zeros(rows, jnp.int32),
      jnp.arange(rows) < len(boxes),
  )


@pytest.mark.parametrize(
    ('rule', 'expected'),
    [
        (assignment.Rule(0.5, 0.4, None), 1),
        (assignment.Rule(0.9, 0.5, None), assignment.IGNORED),
        (assignment.Rule(0.9, 0.6, None), assignment.BACKGROUND),
        (assignment.Rule(0.9, 0.4, 0.5), 1),
    ],
)
def test_thresholds_include_their_value(rule, expected):
  """As in mmdetection, except that background is below its own."""
  boxes = jnp.array([[0.0, 0, 10, 20]])  # an IoU of exactly 1/2
  truth = _truth(np.array([[0, 0, 10, 10]]))
  assert _assign(boxes, jnp.ones(1, bool), truth, rule).tolist() == [expected]


def test_an_object_takes_its_best_boxes_alone():
  """Not those whose IoU is nearly as large."""
  boxes = jnp.array([[0.0, 0, 10, 8], [0, 0, 10, 7.995]])
  truth = _truth(np.array([[0, 0, 10, 10]]))
  rule = assignment.Rule(0.9, 0.1, 0.3)
  found = _assign(boxes, jnp.ones(2, bool), truth, rule)
  assert found.tolist() == [1, assignment.IGNORED]


@pytest.mark.parametrize('case', _CASES)
def test_assignment(case):
  want = reference.arrays()
  boxes = np.float64(want[f'assign/{case}/boxes'])
  gt = np.float64(want[f'assign/{case}/gt'])
  # The same rows of boxes and of objects in all cases, some of them unused.
  rows, unused = 180, np.zeros((180 - len(boxes), 4))
  padded = np.concatenate([boxes, unused]), np.arange(rows) < len(boxes)
  for name, rule in reference.text('assign/rules_json').items():
    positive, negative, least, low_quality = rule
    rule = assignment.Rule(positive, negative, least if low_quality else None)
    truth = _truth(gt, max(len(gt), 1))
    got = _assign(boxes, np.ones(len(boxes), bool), truth, rule)
    np.testing.assert_array_equal(got, want[f'assign/{case}/{name}'], name)
    again = np.asarray(_assign(*padded, _truth(gt, 18), rule))
    np.testing.assert_array_equal(again[: len(boxes)], got, name)
    assert (again[len(boxes) :] == assignment.IGNORED).all()


def test_an_object_that_overlaps_no_box_takes_none():
  """In mmdetection 2.11, all boxes become its own, even of other objects."""
  boxes = jnp.array([[0.0, 0, 10, 10], [0, 0, 10, 11], [40, 40, 50, 50]])
  gt = np.array([[0.0, 0, 10, 10], [80, 80, 90, 90], [5, 5, 5, 5]])
  rule = assignment.Rule(0.95, 0.4, 0.0)
  got = _assign(boxes, jnp.ones(3, bool), _truth(gt, 8), rule)
  assert got.tolist() == [1, -1, 0]


def test_a_sliver_takes_its_best_box_alone():
  """Rounding leaves such of an object that ends where a crop begins."""
  boxes = jnp.array([[0.0, 0, 10, 10], [0, 0, 10, 11], [2, 0, 12, 10]])
  gt = np.array([[0.0, 0, 10, 10], [9, 0, 9.000001, 10]])
  rule = assignment.Rule(0.5, 0.4, 0.0)
  got = _assign(boxes, jnp.ones(3, bool), _truth(gt), rule)
  assert got.tolist() == [2, 1, 2]


def test_objects_in_any_rows():
  boxes = jnp.array([[0.0, 0, 10, 10], [40, 40, 50, 50], [70, 70, 80, 80]])
  valid = jnp.array([False, True, False, True, False])
  rows = boxes[jnp.array([2, 1, 2, 0, 2])]
  truth = assignment.Truth(rows, jnp.zeros(5, jnp.int32), valid)
  got = _assign(boxes, jnp.ones(3, bool), truth, assignment.Rule(0.5, 0.4, 0.3))
  assert got.tolist() == [4, 2, 0]


def test_ties_up_to_rounding_are_ties():
  """An anchor that contains the object: its position does not matter."""
  shift = np.linspace(0, 9.7, 50)[:, None]
  boxes = np.array([[0.1, 0.2, 20.3, 10.4]]) - shift * [1, 0, 1, 0]
  boxes, gt = jnp.float32(boxes), np.array([[0.3, 0.7, 10.1, 9.9]])
  iou = boxes_lib.iou(boxes, jnp.float32(gt))
  assert len(set(iou.tolist())) > 1 and np.ptp(iou) < 1e-6
  rule = assignment.Rule(0.9, 0.6, 0.0)
  got = _assign(boxes, jnp.ones(50, bool), _truth(gt), rule)
  assert (got == 1).all()


def test_invalid_boxes_are_ignored_and_take_no_part():
  """The second box would be the best one; without it, the first is."""
  boxes = jnp.array([[0.0, 0, 10, 20], [0, 0, 10, 11], [50, 50, 60, 60]])
  rule = assignment.Rule(0.9, 0.6, 0.3)
  truth = _truth(np.array([[0.0, 0, 10, 10]]))
  for valid, want in (([1, 1, 1], [0, 1, 0]), ([1, 0, 1], [1, -1, 0])):
    got = _assign(boxes, jnp.array(valid, bool), truth, rule)
    assert got.tolist() == want


def test_sampling():
  assigned = jnp.array([0, 2, -1, 1, 0, 3, 0, -1, 0])
  index, used = _sample(assigned, None, count=5, positives=2)
  assert index.tolist() == [1, 3, 0, 4, 6] and used.all()
  index, used = _sample(assigned, None, count=9, positives=5)
  assert index[:7].tolist() == [1, 3, 5, 0, 4, 6, 8]
  assert used.tolist() == 7 * [True] + 2 * [False]

  @jax.jit
  @jax.vmap
  def draw(key):
    return assignment.sample(assigned, key, count=4, positives=1)

  index, used = draw(jax.random.split(jax.random.key(0), 3000))
  kinds = assigned[index]
  assert used.all() and (kinds[:, 0] > 0).all() and not kinds[:, 1:].any()
  chosen = np.bincount(index.ravel(), minlength=9)
  # A third of the draws for each object, three quarters for background, with
  # deviations of 26 and 24.
  np.testing.assert_allclose(chosen[[1, 3, 5]], 1000, atol=100)
  np.testing.assert_allclose(chosen[[0, 4, 6, 8]], 2250, atol=100)


def _sorted(name=''):
  found = reference.arrays()
  boxes = np.float64(found[f'nms/{name}boxes'])
  scores = np.float64(found['nms/scores'])
  if name == 'chain_':
    scores = np.float64(found['nms/chain_scores'])
  if name == 'equal_':
    scores = np.array([0.9, 0.8, 0.7])
  order = np.argsort(-scores, kind='stable')
  return boxes[order], scores[order], order


@pytest.mark.parametrize(
    ('name', 'thresholds'),
    [('', (0.3, 0.5, 0.7)), ('chain_', (0.5,)), ('equal_', (0.5,))],
)
def test_suppression(name, thresholds):
  boxes, scores, order = _sorted(name)
  everything = jnp.ones(len(boxes), bool)
  for t in thresholds:
    want = reference.arrays()[f'nms/{name}kept_{t}']
    keep = np.asarray(_suppress(boxes, everything, threshold=t))
    np.testing.assert_array_equal(order[keep], want)
    found = jax.device_get(
        _select(
            boxes[:, None],
            scores[:, None],
            least_score=0.0,
            threshold=t,
            limit=len(want) + 3,
        )
    )
    np.testing.assert_array_equal(found.boxes[: len(want)], boxes[keep])
    np.testing.assert_array_equal(found.scores[: len(want)], scores[keep])
    assert not found.scores[len(want) :].any()
    assert not found.boxes[len(want) :].any()


def test_suppression_ignores_invalid_boxes():
  boxes, _, _ = _sorted()
  valid = np.arange(len(boxes)) % 3 > 0
  keep = np.asarray(_suppress(boxes, valid, threshold=0.5))
  want = _suppress(boxes[valid], valid[valid], threshold=0.5)
  np.testing.assert_array_equal(keep[valid], want)
  assert not keep[~valid].any()


def test_suppression_within_classes():
  """Boxes shared by all classes, or of each class; and the score's limit."""
  arrays = reference.arrays()
  boxes, scores = (np.float64(arrays[f'nms/{k}']) for k in ('boxes', 'scores'))
  groups = arrays['nms/groups']
  table = np.eye(groups.max() + 1)[groups] * scores[:, None]
  of_classes = np.stack([boxes] * table.shape[1], 1)
  of_classes = np.where(table[..., None] > 0, of_classes, 7.0)
  shared = boxes[:, None]
  cases = (0.5, of_classes), (0.3, shared), (0.5, shared), (0.7, shared)
  for t, each in cases:
    want = arrays[f'nms/kept_by_group_{t}']
    found = _select(each, table, least_score=0.0, threshold=t, limit=len(want))
    np.testing.assert_array_equal(found.boxes, boxes[want])
    np.testing.assert_array_equal(found.labels, groups[want])
    np.testing.assert_array_equal(found.scores, scores[want])
  least = float(scores[want[5]])
  found = jax.device_get(
      _select(shared, table, least_score=least, threshold=t, limit=9)
  )
  assert found.scores[4] > least and not found.scores[5:].any()


def test_focal_and_smooth_l1(want):
  target, pred = _wide('l1/target'), _wide('l1/pred')
  for name, beta in (('l1', 0.0), ('smooth_l1', 1 / 9)):
    run = jax.jit(
        jax.value_and_grad(
            lambda x, beta=beta: (
                detection_losses.smooth_l1(x - target, beta).sum() / 13
            )
        )
    )
    loss, grad = run(pred)
    reference.compare(loss, want[f'l1/{name}'])
    reference.compare(grad, want[f'l1/{name}_grad'], within=1e-8)
  labels = jnp.asarray(want['focal/labels'])
  labels = jnp.where(labels == 3, -1, labels)  # background
  counted = jnp.asarray(want['focal/weights'] > 0)

  def loss(logits):
    return detection_losses.focal(logits, labels, counted) / 7

  value, grad = jax.jit(jax.value_and_grad(loss))(_wide('focal/logits'))
  reference.compare(value, want['focal/loss'])
  reference.compare(grad, want['focal/grad'], within=1e-8)


def test_scores_that_are_nan_stay_so():
  """As detections: without them, an image would seem to be empty."""
  boxes = jnp.array([[[0.0, 0.0, 4.0, 4.0]], [[9.0, 9.0, 12.0, 12.0]]])
  scores = jnp.array([[0.75], [jnp.nan]])
  found = _select(boxes, scores, least_score=0.05, threshold=0.5, limit=2)
  np.testing.assert_array_equal(found.scores, [np.nan, 0.75])
