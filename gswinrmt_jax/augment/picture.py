"""Pictures of a batch, because people look."""

from collections.abc import Sequence
import math
import pathlib

import numpy as np

# Sides that images are enlarged to at least, and the text under them.
SIDE, LINE, GAP = 96, 12, 4


def write_grid(
    path: str | pathlib.Path,
    images: np.ndarray,
    titles: Sequence[str] | None = None,
    *,
    columns: int = 8,
) -> None:
  """Writes images row by row into one picture; small ones are enlarged.

  Args:
    path: File to write; its ending says the format, for example `.png`.
    images: uint8 [n h w 3], at least one.
    titles: A text of one or more lines under each image; what is wider than
      the image is cut off.
    columns: Images in a row.

  Raises:
    ValueError: If the images are none or not of that type and shape, or the
      titles are not as many.
  """
  from PIL import Image, ImageDraw

  images = np.asarray(images)
  if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
    raise ValueError(
        f'images are {images.dtype} {images.shape}, not uint8 [n h w 3]'
    )
  if not len(images):
    raise ValueError('there are no images to write')
  if titles is not None and len(titles) != len(images):
    raise ValueError(f'{len(titles)} titles for {len(images)} images')
  count, height, width, _ = images.shape
  columns = min(columns, count)
  scale = math.ceil(SIDE / min(height, width))
  cell_width = width * scale + GAP
  lines = max(title.count('\n') + 1 for title in titles) if titles else 0
  cell_height = height * scale + GAP + lines * LINE
  size = (columns * cell_width, math.ceil(count / columns) * cell_height)
  grid = Image.new('RGB', size, 'white')
  for i, image in enumerate(images):
    row, column = divmod(i, columns)
    # Drawn on a cell of its own, so that a long title ends with it.
    cell = Image.new('RGB', (cell_width, cell_height), 'white')
    enlarged = np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)
    cell.paste(Image.fromarray(enlarged), (GAP // 2, GAP // 2))
    if titles:
      place = (GAP // 2, height * scale + GAP // 2)
      ImageDraw.Draw(cell).text(place, titles[i], fill='black', spacing=0)
    grid.paste(cell, (column * cell_width, row * cell_height))
  grid.save(path)


def write_before_after(
    path: str | pathlib.Path,
    before: np.ndarray,
    after: np.ndarray,
    titles: Sequence[str] | None = None,
    *,
    columns: int = 8,
) -> None:
  """Writes rows of images as they were, each above the row that came of it.

  Args:
    path: File to write.
    before: uint8 [n h w 3].
    after: uint8 [n h w 3].
    titles: A text under each image of `after`.
    columns: Images in a row.

  Raises:
    ValueError: If the arrays differ in shape, or as `write_grid` says.
  """
  if before.shape != after.shape:
    raise ValueError(f'{before.shape} before, but {after.shape} after')
  count = len(before)
  columns = min(columns, count)
  texts = titles if titles is not None else [''] * count
  blank = np.full_like(before[:1], 255)
  images, under = [], []
  for start in range(0, count, columns):
    here = slice(start, start + columns)
    missing = columns - len(before[here])
    for row, line in (before, [''] * count), (after, texts):
      images.extend([row[here], *[blank] * missing])
      under.extend([*line[here], *[''] * missing])
  images = np.concatenate(images)
  write_grid(
      path, images, under if titles is not None else None, columns=columns
  )


def denormalize(
    image: np.ndarray,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> np.ndarray:
  """Undoes `batch.normalize`; rounds to uint8 and clips what is beyond."""
  level = (np.asarray(image, np.float64) * std + mean) * 255
  return np.clip(np.rint(level), 0, 255).astype(np.uint8)


def describe(target: np.ndarray, class_names: Sequence[str]) -> str:
  """Names the two heaviest classes of a target, one a line: `cat 0.71`."""
  first, second = np.argsort(-np.asarray(target), kind='stable')[:2]
  parts = [f'{class_names[first]} {target[first]:.2f}']
  others = np.sort(target)[:-1]
  if others[-1] > others[0]:  # else it is the share that smoothing gives to all
    parts.append(f'{class_names[second]} {target[second]:.2f}')
  return '\n'.join(parts)
