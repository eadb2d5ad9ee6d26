"""Plots of a run: its curves, and its first batch with augmentation."""

from collections.abc import Mapping, Sequence
import concurrent.futures
import itertools
import math
import pathlib
from typing import Any
import warnings

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.data import datasets, label_colors
from gswinrmt_jax.runs import scores
from gswinrmt_jax.terminal import printable, Terminal

DRAWN = 16  # images of a batch that are drawn
_COLUMNS = 8  # images per row
_NAMED = 4  # classes of objects named under an image, at most
_DPI = 200
_MIN_SIDE = 96  # pixels; smaller images are enlarged
_LINE, _GAP = 16, 4  # height of a text line, gap between images, in pixels
_MARGIN = 80  # pixels for the label to the left of a row of images

# Axis labels of the panels with one metric; the second panel has the scores.
_PANELS = {
    'loss': 'loss',
    'learning_rate': 'learning rate',
    'grad_norm': 'gradient norm',
}
_STYLES = ('o-', 's--', 'v:', '^-.')  # of scores
_SPLITS = {
    'train': ('tab:blue', 'train (augmented)'),
    'val': ('tab:orange', 'validation'),
    'val_ema': ('tab:green', 'validation, EMA'),
}


class Curves:
  """Draws a run's curves in a thread while it trains.

  It is one thread for all drawings, since Matplotlib opens its font files once
  per thread.
  """

  def __init__(self, folder: pathlib.Path, terminal: Terminal):
    """Takes the run folder, and the terminal that reports failures."""
    self._folder, self._terminal = folder, terminal
    self._executor = concurrent.futures.ThreadPoolExecutor(1)
    self._drawing = None

  def wait(self) -> None:
    """Waits until the current drawing is finished; call it at the end."""
    self._executor.shutdown()
    if self._drawing:
      self._drawing.result()

  def update(self, entries: Sequence[Mapping[str, Any]]) -> None:
    """Starts to draw the entries of `metrics.jsonl` unless still drawing."""
    if self._drawing is None or self._drawing.done():
      self._drawing = self._executor.submit(
          draw_curves, self._folder, [*entries], self._terminal
      )


def draw_curves(
    folder: pathlib.Path,
    entries: Sequence[Mapping[str, Any]],
    terminal: Terminal,
    summary: Mapping[str, Any] | None = None,
) -> None:
  """Plots the metrics over the epochs in `curves.png`.

  If decays are learned, a fifth panel shows the range of gamma.

  Args:
    folder: The run folder; its name is the title.
    entries: The entries of `metrics.jsonl`.
    terminal: Reports a plot that cannot be written.
    summary: The run's summary, for the test results.
  """
  path = folder / 'curves.png'
  with terminal.warn_if_not_written(path.name):
    canvas = _curves(folder, entries, summary)
    with files.replaced(path) as part:
      canvas.print_png(part)


def _curves(folder, entries, summary):
  # Imported here, and without `pyplot`: no window, no global state.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  train = [entry for entry in entries if entry['kind'] == 'train']
  epochs = [entry for entry in entries if entry['kind'] == 'epoch']
  figure = Figure(figsize=(12, 6.4), layout='constrained', dpi=_DPI)
  canvas = FigureCanvasAgg(figure)
  # Letters that the font lacks, such as Chinese ones, are drawn as boxes.
  warnings.filterwarnings('ignore', message='Glyph')
  figure.suptitle(printable(folder.name), parse_math=False)
  cells = figure.add_gridspec(2, 3)
  panels = [figure.add_subplot(cells[divmod(place, 3)]) for place in range(4)]
  logged = set().union(*train, *epochs)
  shown = {
      name: how.label
      for name, how in scores.SCORES.items()
      if how.shown and how.form.endswith('%')  # as the axis
      if {name, f'val_{name}'} & logged
  }
  named = shown if len(shown) > 1 else {}
  for axes, name in zip((panels[0], *panels[2:]), _PANELS, strict=True):
    _draw_metric(axes, name, train, epochs, ', loss' if named else '')
  _draw_scores(panels[1], shown, named, train, epochs)
  if any('gamma_min' in entry for entry in train):
    panels.append(figure.add_subplot(cells[1, 1]))
    _draw_gamma(panels[-1], train)
  _mark_results(panels, epochs, summary, named)
  for axes in panels:
    axes.set_xlabel('epoch')
    axes.grid(alpha=0.3)
  lines = {}  # The score of a detector has no training curve, its loss has.
  for axes in panels[1::-1]:
    for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
      lines.setdefault(label, line)
  legend = figure.add_subplot(cells[1, len(panels) - 3 :])
  legend.axis('off')
  legend.legend(lines.values(), lines, loc='center', frameon=False)
  return canvas


def _draw_metric(axes, name, train, epochs, note):
  """Draws a metric per interval and, by split, per epoch."""
  _draw_intervals(
      axes, name, train, 1, '0.75' if name == 'loss' else 'tab:blue'
  )
  _draw_epochs(axes, name, epochs, 1, 'o-', note)
  axes.set_ylabel(_PANELS[name])
  if name == 'learning_rate':
    axes.ticklabel_format(axis='y', scilimits=(-2, 3))


def _draw_scores(axes, shown, named, train, epochs):
  """Draws scores in percent; labels have the names of those in `named`."""
  for name, style in zip(shown, itertools.cycle(_STYLES), strict=False):
    _draw_intervals(axes, name, train, 100, '0.75')
    note = f', {named[name]}' if name in named else ''
    _draw_epochs(axes, name, epochs, 100, style, note)
  axes.set_ylabel(f'{", ".join(shown.values()) or "score"} (%)')


def _draw_intervals(axes, name, train, factor, color):
  x, y = _curve(train, name, factor)
  if y:
    axes.plot(x, y, color=color, lw=1, label='train, per interval')


def _draw_epochs(axes, name, epochs, factor, style, note=''):
  """Draws a metric per epoch, by split."""
  for split, (color, named) in _SPLITS.items():
    x, y = _curve(epochs, f'{split}_{name}', factor)
    if y:
      axes.plot(x, y, style, ms=3, color=color, label=named + note)


def _draw_gamma(axes, train):
  """Draws the range of the learned decay rates over all heads."""
  x, low = _curve(train, 'gamma_min')
  _, high = _curve(train, 'gamma_max')
  axes.fill_between(x, low, high, color='tab:blue', alpha=0.2, lw=0)
  for values in (low, high):
    axes.plot(x, values, color='tab:blue', lw=1)
  axes.set_ylabel(r'decay $\gamma$, smallest and largest')


def _mark_results(panels, epochs, summary, named):
  """Marks the best epoch, and the test results if there are any.

  The label of a score in `named` says which score it is.
  """
  if not epochs:
    return
  score, epoch, whose = scores.best_epoch(epochs)
  if score < 0:  # no finite loss
    return
  prefix = raw_and_ema.PREFIX if whose == raw_and_ema.EMA else ''
  label = f'best epoch: {epoch}, validation {score:.2%}'
  for axes in panels:
    axes.axvline(epoch, color='0.4', ls=':', label=label)
  tested = (summary or {}).get('best', {})
  chosen = scores.deciding(epochs[0], 'val_')
  for axes, name in zip(panels[:2], ('loss', chosen), strict=True):
    if f'test_{prefix}{name}' not in tested:
      continue
    value = tested[f'test_{prefix}{name}']
    factor = 1 if name == 'loss' else 100
    label = f'test at the best epoch: {value:.2%}'
    if name == 'loss':
      label = None  # The legend has the score.
    elif name in named:
      label = f'{scores.SCORES[name].label}, {label}'
    axes.plot(
        epoch, factor * value, 'D', color='tab:red', label=label, zorder=3
    )


def write_augmented_batch(
    path: pathlib.Path,
    batch: Mapping[str, np.ndarray],
    augmented: tuple[np.ndarray, np.ndarray],
    info: datasets.Info,
) -> None:
  """Draws images before and after augmentation, one above the other.

  Args:
    path: PNG file to write.
    batch: The images as loaded.
    augmented: The same images, augmented and normalised, and their soft
      targets, the label of each pixel, drawn in half-transparent colours, or
      their objects, drawn as boxes.
    info: The data set.
  """
  image, targets = augmented
  image, names = denormalize(image, info.mean, info.std), info.class_names
  if isinstance(targets, Mapping):
    image, titles, colors = _outlined(image, targets['truth'], names)
    write_before_after(path, np.asarray(batch['image']), image, titles, colors)
    return
  if targets.ndim == 3:
    image = label_colors.overlay(image, targets, len(names))
    targets = [
        np.bincount(label.ravel(), minlength=256)[: len(names)] / label.size
        for label in targets
    ]
  write_before_after(
      path,
      np.asarray(batch['image']),
      image,
      [describe(target, names) for target in targets],
  )


def _outlined(image, truth, names):
  """Returns images with boxes and masks in colours of classes, and a legend.

  The legend is the title of each image, with the number of objects of its most
  frequent classes, and the colour of each line.
  """
  from PIL import Image, ImageDraw

  palette = [*map(tuple, label_colors.palette(len(names)).tolist())]
  drawn, titles, colors = [], [], []
  frames = truth.boxes if truth.frames is None else truth.frames
  for row, (pixels, boxes, labels, valid) in enumerate(
      zip(image, *truth[:3], strict=True)
  ):
    picture = Image.fromarray(pixels)
    if truth.bitmaps is not None:
      for place in np.flatnonzero(valid):
        color = palette[labels[place]]
        _shade(picture, truth.bitmaps[row, place], frames[row, place], color)
    for box, label in zip(boxes[valid], labels[valid], strict=True):
      low, high = np.rint(box[:2]), np.maximum(np.rint(box[:2]), box[2:] - 1)
      ImageDraw.Draw(picture).rectangle(
          (*low.tolist(), *high.tolist()), outline=palette[label]
      )
    drawn.append(np.asarray(picture))
    counts = np.bincount(labels[valid], minlength=len(names))
    order = np.argsort(-counts, kind='stable')[:_NAMED]
    most = [label for label in order if counts[label]]
    said = [f'{names[label]}: {counts[label]}' for label in most]
    titles.append('\n'.join(said) or 'no objects')
    colors.append([palette[label] for label in most])
  return np.stack(drawn), titles, colors


def _shade(picture, bitmap, frame, color):
  """Blends the colour into the pixels of a mask, which fills its frame."""
  from PIL import Image

  corner = np.rint(frame[:2]).astype(int)
  sides = np.maximum(np.rint(frame[2:]).astype(int) - corner, 1)
  half = Image.fromarray(np.where(bitmap > 0, 127, 0).astype(np.uint8))
  half = half.resize(sides.tolist(), Image.Resampling.NEAREST)
  picture.paste(color, tuple(corner.tolist()), half)


def write_before_after(
    path: pathlib.Path,
    before: np.ndarray,
    after: np.ndarray,
    titles: Sequence[str],
    colors: Sequence[Sequence[tuple[int, int, int]]] | None = None,
) -> None:
  """Writes each image above its augmented one, row by row.

  Args:
    path: PNG file to write.
    before: uint8 [n h w 3].
    after: uint8 [n h w 3].
    titles: Text under each image, in one or more lines, cut off at its width.
    colors: Colours of squares in front of the first lines of each title.
  """
  from PIL import Image, ImageDraw

  font = label_colors.font(_LINE - 3)
  count, height, width, _ = before.shape
  columns = min(_COLUMNS, count)
  scale = math.ceil(_MIN_SIDE / min(height, width))
  down, across = height * scale + _GAP, width * scale + _GAP
  lines = max(title.count('\n') + 1 for title in titles)
  cell_height = 2 * down + lines * _LINE + _GAP
  rows = math.ceil(count / columns)
  size = _MARGIN + columns * across, rows * cell_height
  grid = Image.new('RGB', size, 'white')
  for row, (offset, label) in itertools.product(
      range(rows),
      ((down / 2, 'decoded'), (1.5 * down, 'augmented'), (2 * down, 'target')),
  ):
    anchor = 'la' if label == 'target' else 'lm'
    place = _GAP, row * cell_height + offset
    ImageDraw.Draw(grid).text(place, label, 'black', font, anchor)
  for i in range(count):
    # Each cell is drawn separately to cut off a long title.
    cell = Image.new('RGB', (across, cell_height), 'white')
    for top, image in ((0, before[i]), (down, after[i])):
      enlarged = np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)
      cell.paste(Image.fromarray(enlarged), (_GAP // 2, top + _GAP // 2))
    draw, left = ImageDraw.Draw(cell), _GAP // 2
    for line, text in enumerate(titles[i].split('\n')):
      top, indent = 2 * down + line * _LINE, 0
      if colors and line < len(colors[i]):
        indent = _LINE
        corners = left, top + 1, left + _LINE - 5, top + _LINE - 4
        draw.rectangle(corners, colors[i][line], 'black')
      draw.text((left + indent, top), text, 'black', font)
    row, column = divmod(i, columns)
    grid.paste(cell, (_MARGIN + column * across, row * cell_height))
  with files.replaced(path) as part:
    grid.save(part, 'PNG')


def denormalize(
    image: np.ndarray,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> np.ndarray:
  """Inverts `batch.normalize`; rounds and clips to uint8."""
  level = (np.asarray(image, np.float64) * std + mean) * 255
  return np.clip(np.rint(level), 0, 255).astype(np.uint8)


def describe(target: np.ndarray, class_names: Sequence[str]) -> str:
  """Lists the one or two heaviest classes, each in a line like `cat: 0.71`.

  A second one is not listed if label smoothing alone explains its weight: if it
  is as light as the lightest.
  """
  first, *others = np.argsort(-np.asarray(target), kind='stable')
  second = [k for k in others[:1] if target[k] > target[others[-1]]]
  return '\n'.join(
      f'{class_names[k]}: {target[k]:.2f}' for k in [first, *second]
  )


def _curve(entries, name, factor=1):
  found = [entry for entry in entries if name in entry]
  x = [entry['epoch'] for entry in found]
  return x, [factor * entry[name] for entry in found]
