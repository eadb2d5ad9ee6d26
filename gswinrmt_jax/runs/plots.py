"""Pictures of a run: its curves, and its first batch before and after."""

from collections.abc import Mapping, Sequence
import pathlib
import threading
from typing import Any

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.augment import picture
from gswinrmt_jax.data import datasets
from gswinrmt_jax.terminal import Terminal

DRAWN = 32  # images of a batch

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
  """Draws a run's curves in a thread as it goes on; a context manager."""

  def __init__(self, folder: pathlib.Path, terminal: Terminal):
    """Takes the run folder, and where it is told if nothing can be drawn."""
    self._folder, self._terminal = folder, terminal
    self._thread = threading.Thread()  # none yet

  def __enter__(self) -> 'Curves':
    return self

  def __exit__(self, *_) -> None:
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
    *,
    count: int = DRAWN,
) -> None:
  """Draws images before and after augmentation, one above the other.

  Args:
    path: Where the PNG goes.
    batch: As loaded.
    augmented: Normalised images and soft targets.
    info: The data set.
    count: Number of images to draw.
  """
  image, targets = (np.asarray(part)[:count] for part in augmented)
  picture.write_before_after(
      path,
      np.asarray(batch['image'])[:count],
      picture.denormalize(image, info.mean, info.std),
      [picture.describe(target, info.class_names) for target in targets],
  )


def _curve(entries, name):
  found = [entry for entry in entries if name in entry]
  return [entry['epoch'] for entry in found], [entry[name] for entry in found]
