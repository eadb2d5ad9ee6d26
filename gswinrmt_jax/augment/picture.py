"""Draws images of a batch into one picture."""

from collections.abc import Sequence
import math
import pathlib

import numpy as np

_MIN_SIDE = 96  # pixels to which small images are enlarged
_LINE, _GAP = 12, 4  # pixels of a line of text and between images


def write_grid(
    path: str | pathlib.Path,
    images: np.ndarray,
    titles: Sequence[str] | None = None,
    *,
    columns: int = 8,
) -> None:
  """Writes images row by row into one picture; small ones are enlarged.

  Args:
    path: File to write; its suffix says the format, for example `.png`.
    images: uint8 [n h w 3], at least one.
    titles: Text of one or more lines under each image, cut off at its width.
    columns: Images in a row.

  Raises:
    ValueError: If there are no images, they have another type or shape, or
      there are not as many titles.
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
  scale = math.ceil(_MIN_SIDE / min(height, width))
  cell_width = width * scale + _GAP
  lines = max(title.count('\n') + 1 for title in titles) if titles else 0
  cell_height = height * scale + _GAP + lines * _LINE
  size = (columns * cell_width, math.ceil(count / columns) * cell_height)
  grid = Image.new('RGB', size, 'white')
  for i, image in enumerate(images):
    row, column = divmod(i, columns)
    # Each cell is drawn separately, so that it cuts off a long title.
    cell = Image.new('RGB', (cell_width, cell_height), 'white')
    enlarged = np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)
    cell.paste(Image.fromarray(enlarged), (_GAP // 2, _GAP // 2))
    if titles:
      place = (_GAP // 2, height * scale + _GAP // 2)
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
  """Writes rows of original images, each above its row of augmented ones.

  Args:
    path: File to write.
    before: uint8 [n h w 3].
    after: uint8 [n h w 3].
    titles: Text under each image of `after`.
    columns: Images in a row.

  Raises:
    ValueError: If the arrays differ in shape, or as for `write_grid`.
  """
  if before.shape != after.shape:
    raise ValueError(f'{before.shape} before, but {after.shape} after')
  count, *shape = before.shape
  columns = min(columns, count)
  rows = math.ceil(count / columns)
  # [row, before or after, column, h w c]; the last row is filled with white.
  grid = np.full((rows, 2, columns, *shape), 255, np.uint8)
  texts = np.full((rows, 2, columns), '', object)
  for i in range(count):
    row, column = divmod(i, columns)
    grid[row, :, column] = before[i], after[i]
    texts[row, 1, column] = titles[i] if titles else ''
  texts = texts.ravel().tolist() if titles else None
  write_grid(path, grid.reshape(-1, *shape), texts, columns=columns)


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
