"""Draws the images of a batch before and after augmentation."""

from collections.abc import Sequence
import math
import pathlib

import numpy as np

_MIN_SIDE = 96  # pixels to which small images are enlarged
_LINE, _GAP = 12, 4  # pixels of a line of text and between images


def write_before_after(
    path: str | pathlib.Path,
    before: np.ndarray,
    after: np.ndarray,
    titles: Sequence[str],
    *,
    columns: int = 8,
) -> None:
  """Writes each image above its augmented one, row by row.

  Args:
    path: File to write; its suffix says the format, for example `.png`.
    before: uint8 [n h w 3].
    after: uint8 [n h w 3].
    titles: Text of one or more lines under each image, cut off at its width.
    columns: Images in a row.
  """
  from PIL import Image, ImageDraw

  count, height, width, _ = before.shape
  columns = min(columns, count)
  scale = math.ceil(_MIN_SIDE / min(height, width))
  down, across = height * scale + _GAP, width * scale + _GAP
  lines = max(title.count('\n') + 1 for title in titles)
  cell_height = 2 * down + lines * _LINE
  size = columns * across, math.ceil(count / columns) * cell_height
  grid = Image.new('RGB', size, 'white')
  for i in range(count):
    # Each cell is drawn separately, so that it cuts off a long title.
    cell = Image.new('RGB', (across, cell_height), 'white')
    for top, image in ((0, before[i]), (down, after[i])):
      enlarged = np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)
      cell.paste(Image.fromarray(enlarged), (_GAP // 2, top + _GAP // 2))
    place = _GAP // 2, 2 * down - _GAP // 2
    ImageDraw.Draw(cell).text(place, titles[i], fill='black', spacing=0)
    row, column = divmod(i, columns)
    grid.paste(cell, (column * across, row * cell_height))
  grid.save(path)


def denormalize(
    image: np.ndarray,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> np.ndarray:
  """Inverts `batch.normalize`; rounds and clips to uint8."""
  level = (np.asarray(image, np.float64) * std + mean) * 255
  return np.clip(np.rint(level), 0, 255).astype(np.uint8)


def describe(target: np.ndarray, class_names: Sequence[str]) -> str:
  """Names the two heaviest classes of a target, one a line: `cat 0.71`."""
  first, second = np.argsort(-np.asarray(target), kind='stable')[:2]
  parts = [f'{class_names[first]} {target[first]:.2f}']
  others = np.sort(target)[:-1]
  if others[-1] > others[0]:  # otherwise it is only the smoothing
    parts.append(f'{class_names[second]} {target[second]:.2f}')
  return '\n'.join(parts)
