"""Pictures of a run: its curves, and its first batch before and after."""

from collections.abc import Mapping, Sequence
import math
import pathlib
import threading
from typing import Any

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.data import datasets
from gswinrmt_jax.terminal import Terminal

DRAWN = 32  # images of a batch

_MIN_SIDE = 96  # pixels to which small images are enlarged
_LINE, _GAP = 12, 4  # pixels of a line of text and between images

_PANELS = {
    'loss': 'cross-entropy',
    'accuracy': 'accuracy',
    'learning_rate': 'learning rate',
}
_SPLITS = {
    'train': ('tab:blue', 'train (augmented)'),
    'val': ('tab:orange', 'validation'),
    'val_ema': ('tab:green', 'validation, EMA'),
}


class Curves:
  """Draws a run's curves in a thread while it trains."""

  def __init__(self, folder: pathlib.Path, terminal: Terminal):
    """Takes the run folder, and where it is told if nothing can be drawn."""
    self._folder, self._terminal = folder, terminal
    self._thread = threading.Thread()  # none yet

  def wait(self) -> None:
    """Waits until nothing is drawn any more."""
    if self._thread.ident:
      self._thread.join()

  def update(self, entries: Sequence[Mapping[str, Any]]) -> None:
    """Draws the entries of `metrics.jsonl`, unless it is still drawing."""
    if not self._thread.is_alive():
      self._thread = threading.Thread(
          target=draw_curves, args=(self._folder, [*entries], self._terminal)
      )
      self._thread.start()


def draw_curves(
    folder: pathlib.Path,
    entries: Sequence[Mapping[str, Any]],
    terminal: Terminal,
) -> None:
  """Draws loss, accuracy and learning rate over the epochs: `curves.png`.

  Args:
    folder: The run folder; its name is the title.
    entries: Those of `metrics.jsonl`.
    terminal: Says so if the picture cannot be written.
  """
  # Imported here, and without `pyplot`: no window, no global state.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  train = [entry for entry in entries if entry['kind'] == 'train']
  epochs = [entry for entry in entries if entry['kind'] == 'epoch']
  figure = Figure(figsize=(12, 3.6), layout='constrained')
  canvas = FigureCanvasAgg(figure)
  figure.suptitle(folder.name)
  for axes, name in zip(figure.subplots(1, 3), _PANELS, strict=True):
    alone = name == 'learning_rate'
    color = 'tab:blue' if alone else '0.75'
    axes.plot(*_curve(train, name), color=color, lw=1, label='per interval')
    for split, (color, label) in _SPLITS.items():
      x, y = _curve(epochs, f'{split}_{name}')
      if y:
        axes.plot(x, y, 'o-', ms=3, color=color, label=label)
    axes.set(xlabel='epoch', ylabel=_PANELS[name])
    axes.grid(alpha=0.3)
    if not alone:
      axes.legend(frameon=False)
  path = folder / 'curves.png'
  with terminal.sparing(path.name), files.replaced(path) as part:
    canvas.print_png(part)


def write_augmented_batch(
    path: pathlib.Path,
    batch: Mapping[str, np.ndarray],
    augmented: tuple[np.ndarray, np.ndarray],
    info: datasets.Info,
) -> None:
  """Draws images before and after augmentation, one above the other.

  Args:
    path: Where the PNG goes.
    batch: The images as loaded.
    augmented: The same, augmented and normalised, and their soft targets.
    info: The data set.
  """
  image, targets = augmented
  write_before_after(
      path,
      np.asarray(batch['image']),
      denormalize(image, info.mean, info.std),
      [describe(target, info.class_names) for target in targets],
  )


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


def _curve(entries, name):
  found = [entry for entry in entries if name in entry]
  return [entry['epoch'] for entry in found], [entry[name] for entry in found]
