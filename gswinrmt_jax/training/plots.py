"""The curves of a run, as a picture."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any


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
    axes.plot(*_curve(train, name), color='0.75', lw=1, label='per interval')
    for split, color in (('train', 'tab:blue'), ('val', 'tab:orange')):
      x, y = _curve(epochs, f'{split}_{name}')
      if y:
        axes.plot(x, y, 'o-', ms=3, color=color, label=_LABELS[split])
    axes.set(xlabel='epoch', ylabel=label)
    axes.grid(alpha=0.3)
    if name != 'learning_rate':
      axes.legend(frameon=False)
  part = path.with_name(path.name + '.part')
  canvas.print_png(part)
  part.replace(path)


_LABELS = {
    'train': 'train (augmented, soft targets)',
    'val': 'validation',
}


def _curve(entries, name):
  found = [entry for entry in entries if name in entry]
  return [entry['epoch'] for entry in found], [entry[name] for entry in found]
