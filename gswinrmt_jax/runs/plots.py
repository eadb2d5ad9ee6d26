"""Pictures of a run: its curves, and what its training images look like."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.augment import picture
from gswinrmt_jax.data import datasets
from gswinrmt_jax.runs import metrics_log

DRAWN = 32  # images of a batch


def draw_curves(
    folder: pathlib.Path,
    entries: Sequence[Mapping[str, Any]],
    terminal: metrics_log.Terminal,
) -> None:
  """Draws a run's `curves.png`, or says that it could not be written.

  Args:
    folder: Of the run.
    entries: Those of `metrics.jsonl`.
    terminal: Where that is said.
  """
  path = folder / 'curves.png'
  with terminal.sparing(path.name):
    write_curves(path, entries, folder.name)


def write_curves(
    path: pathlib.Path, entries: Sequence[Mapping[str, Any]], title: str
) -> None:
  """Draws loss, accuracy and learning rate over the epochs.

  Args:
    path: Where the PNG goes, whole or not at all.
    entries: Those of `metrics.jsonl`.
    title: Over the picture.
  """
  # Imported here, and without `pyplot`: no window, no global state.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  train = [entry for entry in entries if entry['kind'] == 'train']
  epochs = [entry for entry in entries if entry['kind'] == 'epoch']
  figure = Figure(figsize=(12, 3.6), layout='constrained')
  canvas = FigureCanvasAgg(figure)
  figure.suptitle(title)
  panels = zip(
      figure.subplots(1, 3),
      ('loss', 'accuracy', 'learning_rate'),
      ('cross-entropy', 'accuracy', 'learning rate'),
      strict=True,
  )
  for axes, name, label in panels:
    alone = name == 'learning_rate'
    color = 'tab:blue' if alone else '0.75'
    axes.plot(*_curve(train, name), color=color, lw=1, label='per interval')
    for split, color in _COLORS.items():
      x, y = _curve(epochs, f'{split}_{name}')
      if y:
        axes.plot(x, y, 'o-', ms=3, color=color, label=_LABELS[split])
    axes.set(xlabel='epoch', ylabel=label)
    axes.grid(alpha=0.3)
    if not alone:
      axes.legend(frameon=False)
  with files.replacing(path) as part:
    canvas.print_png(part)


def write_augmented_batch(
    path: pathlib.Path,
    batch: Mapping[str, np.ndarray],
    augmented: tuple[np.ndarray, np.ndarray],
    info: datasets.Info,
    *,
    count: int = DRAWN,
) -> None:
  """Draws images as they were above what the augmentation made of them.

  Args:
    path: Where the PNG goes.
    batch: As loaded.
    augmented: Normalised images and soft targets.
    info: Of the data set.
    count: Images to draw.
  """
  image, targets = (np.asarray(part)[:count] for part in augmented)
  picture.write_before_after(
      path,
      np.asarray(batch['image'])[:count],
      picture.denormalize(image, info.mean, info.std),
      [picture.describe(target, info.class_names) for target in targets],
  )


_LABELS = {
    'train': 'train (augmented)',
    'val': 'validation',
    'val_ema': 'validation, EMA',
}
_COLORS = {'train': 'tab:blue', 'val': 'tab:orange', 'val_ema': 'tab:green'}


def _curve(entries, name):
  found = [entry for entry in entries if name in entry]
  return [entry['epoch'] for entry in found], [entry[name] for entry in found]
