"""The objects found in an image: as arrays, text, COCO's JSON and a picture."""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from gswinrmt_jax import files
from gswinrmt_jax.data import label_colors
from gswinrmt_jax.data.detection import pycocotools
from gswinrmt_jax.evals import detection
from gswinrmt_jax.terminal import printable

_SMALLEST_TEXT = 12  # pixels; the smallest that is easy to read
_TEXTS = 45  # texts above one another that would fill a picture's height
_LEAST_SIDE = 240  # smaller pictures are drawn enlarged, to have room for text
_MOST_SIDE = 2000  # but not beyond, as a strip of few pixels would be


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectDetections:
  """The objects that a detector found in one image, best first.

  Its text is a table of scores, names and corners x0 y0 x1 y1 in pixels.

  Attributes:
    image: Path of the image, or 'image' if it was not read from a file.
    pixels: The image, uint8 `[h w 3]`.
    boxes: x0 y0 x1 y1 of each object in pixels of the image, float32 `[n 4]`.
    scores: Their probabilities, float32 `[n]`.
    labels: Their classes, int32 `[n]`.
    names: Names of all classes, by number.
    cells: Probability of the object in each cell of its box, float32 `[n m m]`;
      None from a detector without masks.
  """

  image: str
  pixels: np.ndarray = dataclasses.field(repr=False)
  boxes: np.ndarray
  scores: np.ndarray
  labels: np.ndarray
  names: tuple[str, ...]
  cells: np.ndarray | None = dataclasses.field(default=None, repr=False)

  def __len__(self) -> int:
    return len(self.scores)

  @functools.cached_property
  def masks(self) -> np.ndarray | None:
    """The pixels of each object, bool `[n h w]`; None without masks.

    Cells are resized to the box, bilinearly; pixels of at least 1/2 belong to
    the object.
    """
    if self.cells is None:
      return None
    found = [self._mask(row) for row in range(len(self))]
    return np.reshape(found, (-1, *self.pixels.shape[:2])).astype(bool)

  def _mask(self, row):
    """Returns the pixels of one object, uint8 `[h w]`, 0 or 1."""
    size = self.pixels.shape[:2]
    return detection.covered(self.cells[row], self.boxes[row], size)

  def __str__(self) -> str:
    rows = zip(self.scores, self.labels, self.boxes, strict=True)
    lines = []
    for score, label, box in rows:
      corners = ' '.join(f'{side:6.0f}' for side in box)
      lines.append(f'  {score:6.1%}{corners}  {self.names[label]}')
    return '\n'.join([printable(self.image), *(lines or ['  no objects'])])

  def results(self) -> list[dict[str, Any]]:
    """Returns the objects as COCO's results, without the id of the image.

    A box is x y w h in pixels of the image, the area that of the mask if there
    is one. The id of a category is its label + 1.

    Raises:
      UserError: If there are masks, and pycocotools is not installed.
    """
    results = []
    for row, box in enumerate(self.boxes.astype(np.float64)):
      corner, sides = box[:2].tolist(), (box[2:] - box[:2]).tolist()
      found = {
          'category_id': int(self.labels[row]) + 1,
          'bbox': [*corner, *sides],
          'area': float(np.prod(sides)),
          'score': float(self.scores[row]),
      }
      if self.cells is not None:
        size = self.pixels.shape[:2]
        runs = detection.encode(self.cells[row], self.boxes[row], size)
        found['area'] = float(pycocotools('mask').area(runs))
        found['segmentation'] = runs | {'counts': runs['counts'].decode()}
      results.append(found)
    return results

  def picture(self) -> Image.Image:
    """Returns the image with boxes, masks, names and scores.

    Colours are those of the classes or, if there is only one class, of the
    objects, and its name is left out. A text lies where it covers the least of
    all boxes; it is left out where it would cover another text. A margin leaves
    room for texts, and small images are enlarged.
    """
    height, width = self.pixels.shape[:2]
    times = -(-_LEAST_SIDE // min(height, width))
    times = max(1, min(times, _MOST_SIDE // max(height, width)))
    drawn = Image.fromarray(self._covered()).resize(
        (width * times, height * times), Image.Resampling.NEAREST
    )
    size = max(_SMALLEST_TEXT, round((height * width) ** 0.5 * times / _TEXTS))
    margin, line = size + size // 2, max(1, size // 8)
    picture = Image.new(
        'RGB', (drawn.width, drawn.height + 2 * margin), 'white'
    )
    picture.paste(drawn, (0, margin))
    draw, font = ImageDraw.Draw(picture), label_colors.font(size)
    boxes = self.boxes * times + np.float32([0, margin] * 2)
    colors = self._colors()
    for box, color in reversed([*zip(boxes, colors, strict=True)]):
      corners = box.round().tolist()
      outer = [
          *(x - line for x in corners[:2]),
          *(x + line for x in corners[2:]),
      ]
      draw.rectangle(outer, outline='white', width=line)
      draw.rectangle(corners, outline=color, width=2 * line)
    taken = []
    rows = zip(boxes, colors, self.scores, self.labels, strict=True)
    for box, color, score, label in rows:
      name = f'{self.names[label]}  ' if len(self.names) > 1 else ''
      text = f'{name}{score:.0%}'
      extent = font.getlength(text) + 2 * line, size + 2 * line
      place = _place(box, extent, boxes, taken, picture.size)
      if place is None:
        continue
      taken.append(place)
      draw.rectangle(place.tolist(), fill=color)
      bright = np.dot(color, (0.299, 0.587, 0.114)) > 140
      corner = place[0] + line, (place[1] + place[3]) / 2
      draw.text(corner, text, 'black' if bright else 'white', font, 'lm')
    return picture

  def _colors(self):
    """Returns the colour of each object, as tuples."""
    single = len(self.names) == 1
    index = np.arange(len(self)) if single else self.labels
    palette = label_colors.palette(max(len(self.names), len(self)))
    return list(map(tuple, palette[index].tolist()))

  def _covered(self):
    """Returns the image, blended with the colours of the masks."""
    pixels = self.pixels.copy()
    if self.cells is not None:
      colors = self._colors()
      for row in reversed(range(len(self))):  # the best is on top
        mask = self._mask(row) > 0
        mixed = self.pixels[mask].astype(np.uint16) + np.uint16(colors[row])
        pixels[mask] = (mixed + 1) // 2
    return pixels

  def write(self, path: pathlib.Path) -> list[pathlib.Path]:
    """Writes the picture to `PATH_objects.png`; returns that path in a list."""
    path = path.with_name(f'{path.name}_objects.png')
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replaced(path) as part:
      self.picture().save(part, 'PNG')
    return [path]


def to_coco(
    found: Iterable[ObjectDetections], names: Sequence[str]
) -> dict[str, Any]:
  """Returns the objects of images as a data set in COCO's format.

  'annotations' are results with scores: `pycocotools.coco.COCO` reads the whole
  file, and its `loadRes` the annotations. Images have the ids 1, 2, ... in the
  order given, categories label + 1.

  Args:
    found: Detections; one image is in memory at a time if they are an iterator.
    names: Names of the classes.

  Raises:
    UserError: If there are masks, and pycocotools is not installed.
  """
  annotations, images = [], []
  for image, one in enumerate(found, start=1):
    height, width = one.pixels.shape[:2]
    images.append(
        {'id': image, 'file_name': one.image, 'width': width, 'height': height}
    )
    for result in one.results():
      ids = {'id': len(annotations) + 1, 'image_id': image, 'iscrowd': 0}
      annotations.append(ids | result)
  return {
      'images': images,
      'categories': [
          {'id': number, 'name': name} for number, name in enumerate(names, 1)
      ],
      'annotations': annotations,
  }


def _place(box, extent, boxes, taken, size):
  """Returns where the text of a box is drawn, x0 y0 x1 y1; None for nowhere.

  Above, below or beside the box, or inside at its top: where it covers the
  least of all boxes, of equal places the first, but no other text.
  """
  (wide, high), (across, down) = extent, size
  left, top, right, bottom = box
  corners = [
      (left, top - high),
      (right - wide, top - high),
      (left, bottom + 1),
      (right - wide, bottom + 1),
      (right + 1, top),
      (left - wide - 1, top),
      (left, top),
  ]
  places = []
  for x, y in corners:
    x, y = min(max(x, 0), across - wide), min(max(y, 0), down - high)
    place = np.array([max(x, 0), y, max(x, 0) + wide, y + high])
    if not taken or not _shared(place, np.array(taken)).any():
      places.append((_shared(place, boxes).sum(), len(places), place))
  return min(places, key=lambda found: found[:2])[2] if places else None


def _shared(place, boxes):
  """Returns the areas that a place shares with boxes."""
  low = np.maximum(place[:2], boxes[:, :2])
  high = np.minimum(place[2:], boxes[:, 2:])
  return (high - low).clip(0).prod(-1)
