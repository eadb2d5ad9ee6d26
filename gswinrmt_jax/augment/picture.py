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
    titles: A text under each image; what is too long for it is cut off.
    columns: Images in a row.

  Raises:
    ValueError: If the images are none or not of that type and shape, or the
      titles are not as many.
  """
  from PIL import Image
  from PIL import ImageDraw

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
  cell_height = height * scale + GAP + (LINE if titles is not None else 0)
  size = (columns * cell_width, math.ceil(count / columns) * cell_height)
  grid = Image.new('RGB', size, 'white')
  for i, image in enumerate(images):
    row, column = divmod(i, columns)
    # Drawn on a cell of its own, so that a long title ends with it.
    cell = Image.new('RGB', (cell_width, cell_height), 'white')
    enlarged = np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)
    cell.paste(Image.fromarray(enlarged), (GAP // 2, GAP // 2))
    if titles is not None:
      place = (GAP // 2, height * scale + GAP // 2)
      ImageDraw.Draw(cell).text(place, titles[i], fill='black')
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
  blank = np.full_like(before[:1], 255)
  images, texts = [], []
  for start in range(0, len(before), columns):
    rows = [a[start : start + columns] for a in (before, after)]
    missing = columns - len(rows[0]) if start else 0
    for row in rows:
      images.extend([row, *[blank] * missing])
    here = len(rows[0])
    below = titles[start : start + columns] if titles is not None else []
    texts.extend([''] * (here + missing))
    texts.extend([*below, *[''] * missing])
  write_grid(
      path,
      np.concatenate(images),
      texts if titles is not None else None,
      columns=columns,
  )


def denormalize(
    image: np.ndarray,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> np.ndarray:
  """Undoes `batch.normalize`: rounded to uint8, and clipped where it is noise."""
  level = (np.asarray(image, np.float64) * std + mean) * 255
  return np.clip(np.rint(level), 0, 255).astype(np.uint8)


def describe(target: np.ndarray, class_names: Sequence[str]) -> str:
  """Names the two heaviest classes of a target, such as `cat 0.71 dog 0.21`."""
  first, second = np.argsort(-np.asarray(target), kind='stable')[:2]
  parts = [f'{class_names[first]} {target[first]:.2f}']
  others = np.sort(target)[:-1]
  if others[-1] > others[0]:  # else it is the share that smoothing gives to all
    parts.append(f'{class_names[second]} {target[second]:.2f}')
  return ' '.join(parts)
