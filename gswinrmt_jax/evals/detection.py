"""Average precision of detectors, as in COCO, computed by pycocotools.

It ranks all detections of a split by their scores, so it is no sum over
batches: detections are collected first.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import io
from typing import Any

import jax
import numpy as np

from gswinrmt_jax.data import detection
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.ops import roi_align
from gswinrmt_jax.ops.nms import Detections

_LIMIT = 100  # detections of an image and a class that COCO counts
# Name: title, COCO's array, index of its area range, threshold of the IoU.
_SCORES = {
    'ap': ('AP', 'precision', 0, None),
    'ap50': ('AP50', 'precision', 0, 0.5),
    'ap75': ('AP75', 'precision', 0, 0.75),
    'ap_small': ('AP, small', 'precision', 1, None),
    'ap_medium': ('AP, medium', 'precision', 2, None),
    'ap_large': ('AP, large', 'precision', 3, None),
    'ar': ('AR', 'recall', 0, None),
}


def batch_outputs(
    apply: Callable[..., Detections],
    image: jax.Array,
    batch: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:
  """Returns the detections of a batch, as `Collector.add` takes them.

  Args:
    apply: The detector, bound to its variables.
    image: Normalised images.
    batch: 'extents' int `[b, 2]`, 'row' int `[b]` and 'mask' `[b]`, 0 for
      padding.
  """
  found = apply(image, extents=batch['extents'])
  return found.arrays() | {
      name: batch[name] for name in ('extents', 'row', 'mask')
  }


class Collector:
  """The detections of a split, in pixels of the images as they are stored."""

  def __init__(self, records: detection.AnnotatedImages, num_classes: int):
    """Starts without detections.

    Args:
      records: The records, whose objects are the truth.
      num_classes: Number of classes.

    Raises:
      UserError: If there is no object.
    """
    if not detection.has_objects(records.described):
      raise UserError('the images to evaluate on have no objects')
    self._described, self._found = records.described, {}
    self._has_masks, self._num_classes = records.has_masks, num_classes
    self._limit, self._not_finite = _LIMIT, 0

  def add(self, outputs: Mapping[str, np.ndarray]) -> None:
    """Adds the detections of a batch, see `batch_outputs`."""
    self._limit = max(_LIMIT, outputs['scores'].shape[1])
    for index in np.flatnonzero(outputs['mask'] > 0):
      row = int(outputs['row'][index])
      size, _ = self._described[row]
      down, across = outputs['extents'][index].tolist()
      used = ~(outputs['scores'][index] <= 0)  # NaN is used.
      scale = np.array([size[0] / across, size[1] / down] * 2)
      found = {
          'boxes': outputs['boxes'][index][used].astype(np.float64) * scale,
          'scores': outputs['scores'][index][used].astype(np.float64),
          'labels': outputs['labels'][index][used],
      }
      finite = np.isfinite(found['boxes']).all(1)
      finite &= np.isfinite(found['scores'])
      if 'masks' in outputs:
        masks = outputs['masks'][index][used]
        finite &= np.isfinite(masks).all((1, 2))
      self._not_finite += not finite.all()
      found = {name: array[finite] for name, array in found.items()}
      if 'masks' in outputs:
        found['masks'] = [
            encode(mask, box, size[::-1])
            for mask, box in zip(masks[finite], found['boxes'], strict=True)
        ]
      self._found[row] = found

  def results(self) -> list[dict[str, Any]]:
    """Returns the detections in COCO's format, ordered by image.

    Image and category ids are row and label + 1. Boxes are x y w h.
    """
    results = []
    for row, found in sorted(self._found.items()):
      boxes = found['boxes'].copy()
      boxes[:, 2:] -= boxes[:, :2]
      for index, box in enumerate(boxes.tolist()):
        result = {
            'image_id': row + 1,
            'category_id': int(found['labels'][index]) + 1,
            'bbox': box,
            'score': float(found['scores'][index]),
        }
        if 'masks' in found:
          result['segmentation'] = found['masks'][index]
        results.append(result)
    return results

  def scores(self) -> dict[str, Any]:
    """Returns the reported scores, as plain numbers and lists.

    They are 'ap', the mean over IoU thresholds .5 to .95, 'ap50', 'ap75',
    'ap_small', 'ap_medium', 'ap_large' (areas below 32 x 32, up to 96 x 96, and
    above, in pixels of the stored images), 'ar', the mean recall over IoU
    thresholds, and 'class_ap', for boxes; for masks, if the objects have them,
    the same as 'mask_ap' and so on. Sizes that no object has are left out. A
    class without objects has the AP None, and no mean includes it. 'images'
    counts the images, and `detections` is the number per image and class that
    is counted: 100, or more if the detector may return more.

    Raises:
      UserError: If pycocotools is not installed.
    """
    truth = dataset(self._described, self._num_classes)
    found = self.results()
    scores = {'images': len(self._found), 'detections': self._limit}
    if self._not_finite:
      scores['not_finite'] = self._not_finite
    scores |= average_precision(truth, found, 'bbox', self._limit)
    with_masks = any('masks' in image for image in self._found.values())
    if with_masks and self._has_masks:
      scores |= average_precision(truth, found, 'segm', self._limit, 'mask_')
    return scores


def dataset(
    described: Sequence[tuple[tuple[int, int], detection.Objects]],
    num_classes: int,
) -> dict[str, Any]:
  """Returns the truth in COCO's format.

  Image and category ids are row and label + 1.

  Args:
    described: Width, height and objects of each image.
    num_classes: Number of classes.
  """
  annotations = []
  for row, (size, objects) in enumerate(described, 1):
    for index, box in enumerate(objects.boxes.astype(np.float64)):
      annotation = {
          'id': len(annotations) + 1,  # pycocotools takes 0 for unmatched
          'image_id': row,
          'category_id': int(objects.labels[index]) + 1,
          'bbox': [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()],
          'area': float(objects.areas[index]),
          'iscrowd': int(objects.crowds[index]),
      }
      if objects.masks is not None:
        annotation['segmentation'] = {
            'size': [size[1], size[0]],
            'counts': objects.masks[index].tolist(),
        }
      annotations.append(annotation)
  return {
      'images': [
          {'id': row, 'width': size[0], 'height': size[1]}
          for row, (size, _) in enumerate(described, 1)
      ],
      'categories': [{'id': id_} for id_ in range(1, num_classes + 1)],
      'annotations': annotations,
  }


def average_precision(
    truth: Mapping[str, Any],
    found: Sequence[Mapping[str, Any]],
    kind: str,
    limit: int = _LIMIT,
    prefix: str = '',
) -> dict[str, Any]:
  """Returns the scores of `Collector.scores` for boxes.

  Args:
    truth: Images, categories and annotations in COCO's format.
    found: Detections in COCO's format.
    kind: What is compared: 'bbox' or 'segm'.
    limit: Detections of an image and a class that are counted.
    prefix: Beginning of the names of scores, but for `class_`.

  Raises:
    UserError: If pycocotools is not installed.
  """
  coco, cocoeval = detection.pycocotools('coco'), detection.pycocotools(
      'cocoeval'
  )
  with contextlib.redirect_stdout(io.StringIO()):  # It prints its progress.
    of_truth = coco.COCO()
    of_truth.dataset = truth
    of_truth.createIndex()
    # Of a result with both, `loadRes` would take the area of the box.
    other = 'segmentation' if kind == 'bbox' else 'bbox'
    found = [{k: v for k, v in x.items() if k != other} for x in found]
    # Without a detection, `loadRes` fails.
    of_found = of_truth.loadRes(found) if found else coco.COCO()
    evaluation = cocoeval.COCOeval(of_truth, of_found, kind)
    evaluation.params.maxDets = [1, 10, limit]
    evaluation.params.imgIds = [image['id'] for image in truth['images']]
    evaluation.evaluate()
    evaluation.accumulate()
  # Precision is by threshold, recall level, class, area and limit; recall is
  # without the levels. Both are -1 where there is no object.
  thresholds = evaluation.params.iouThrs

  def mean(values):
    known = values[values > -1]
    return float(known.mean()) if known.size else None

  scores = {}
  for name, (_, array, area, threshold) in _SCORES.items():
    rows = slice(None) if threshold is None else thresholds == threshold
    values = evaluation.eval[array][rows, ..., area, -1]
    scores[f'{prefix}{name}'] = mean(values)
  scores = {name: score for name, score in scores.items() if score is not None}
  classes = np.moveaxis(evaluation.eval['precision'][..., 0, -1], 2, 0)
  by_class = [mean(of_class) for of_class in classes]
  return scores | {f'class_{prefix}ap': by_class}


def covered(
    mask: np.ndarray, box: np.ndarray, size: tuple[int, int]
) -> np.ndarray:
  """Returns the pixels of a detection, uint8 `[h w]`, 0 or 1.

  Args:
    mask: Probabilities in the cells of the box; at least 1/2 is the object.
    box: x0 y0 x1 y1, in pixels of the image.
    size: Height and width of the image.
  """
  low = np.clip(np.floor(box[:2]), 0, size[::-1]).astype(int)
  high = np.clip(np.ceil(box[2:]), low, size[::-1]).astype(int)
  shift = np.tile(low, 2)
  window = roi_align.paste(
      mask[None], (box - shift)[None], tuple((high - low)[::-1].tolist())
  )
  pixels = np.zeros(size, np.uint8, order='F')
  pixels[low[1] : high[1], low[0] : high[0]] = window[0] >= 0.5
  return pixels


def encode(
    mask: np.ndarray, box: np.ndarray, size: tuple[int, int]
) -> dict[str, Any]:
  """Returns the pixels of a detection, as COCO's compressed runs.

  Arguments are those of `covered`.

  Raises:
    UserError: If pycocotools is not installed.
  """
  return detection.pycocotools('mask').encode(covered(mask, box, size))


def table(report: Mapping[str, Any], class_names: Sequence[str]) -> str:
  """Returns the scores as text, for the terminal."""
  kinds = ['', 'mask_'] if 'mask_ap' in report else ['']
  width = max(21, *map(len, class_names)) + 2

  def row(name, values):
    cells = ('-' if value is None else f'{value:.2%}' for value in values)
    return f'{name:<{width}}' + ''.join(f'{cell:>10}' for cell in cells)

  of = ''.join(f'{what:>10}' for what in ('boxes', 'masks')[: len(kinds)])
  lines = [
      f'{"images":<{width}}{report["images"]:>10}',
      f'{"most per class, image":<{width}}{report["detections"]:>10}',
      '',
      ' ' * width + of,
      *(
          row(title, [report.get(kind + name) for kind in kinds])
          for name, (title, *_) in _SCORES.items()
      ),
      '',
      f'{"AP of class":<{width}}{of}',
  ]
  by_class = [report[f'class_{kind}ap'] for kind in kinds]
  for name, *values in zip(class_names, *by_class, strict=True):
    lines.append(row(name, values))
  return '\n'.join(lines)
