"""Plots of the maps, over the image and alone."""

import math
import pathlib
import textwrap
import warnings

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interpret.maps import Maps
from gswinrmt_jax.terminal import printable

# The value that is drawn white, and what the colours mean, by gate function.
_GATES = {
    'sigmoid': (0.5, 'Red: open; blue: closed; white: 0.5.'),
    'swish': (0.0, 'Red: positive; blue: negative; white: 0, closed.'),
}
MAX_HEADS = 8  # per stage; more would be too small to see
_DPI = 200


def write(
    directory: str | pathlib.Path,
    maps: Maps,
    pixels: np.ndarray,
    *,
    title: str = '',
    class_name: str = '',
) -> list[pathlib.Path]:
  """Draws reach, decay, gate and Grad-CAM; each file is written atomically.

  Args:
    directory: Folder for `attention_reach.png`, `grad_cam.png` and, if the
      model has a decay or a gate, `decay_kernels.png` and `gate.png`. It is
      created if it does not exist.
    maps: The maps to draw.
    pixels: Image of the maps before normalisation, uint8 [h w 3].
    title: Title of every plot, such as the file name and the predicted class.
    class_name: Name of the class of Grad-CAM; '' for its number.

  Returns:
    The paths of the files.

  Raises:
    ValueError: If `pixels` is not uint8 or not of the same size as the maps.
    UserError: If every stage has a single token.
  """
  pixels = np.asarray(pixels)
  if pixels.dtype != np.uint8 or pixels.shape != (*maps.size, 3):
    raise ValueError(
        f'the pixels are {pixels.dtype} {pixels.shape}, not uint8 '
        f'{(*maps.size, 3)}'
    )
  stages, _ = _with_several_tokens(maps)
  if not stages:
    height, width = maps.size
    raise UserError(
        f'at {height}x{width} pixels, every stage has a single token: there is '
        'no attention to draw; choose a larger image size'
    )
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  figures = {
      'attention_reach.png': _reach(maps, pixels),
      'grad_cam.png': _grad_cam(
          maps, pixels, class_name or f'class {maps.label}'
      ),
      'decay_kernels.png': None,
      'gate.png': None,
  }
  if any(found.kernel is not None for found in stages.values()):
    figures['decay_kernels.png'] = _decay(maps)
  if maps.stages[0].gate is not None:
    figures['gate.png'] = _gate(maps, pixels)
  written = []
  for name, figure in figures.items():
    if figure is None:  # Another model's may be there.
      (directory / name).unlink(missing_ok=True)
    else:
      written.append(_save(directory / name, figure, title))
  return written


def _reach(maps, pixels):
  """Draws the image, then the heads of each stage."""
  panels, note = _heads(maps)
  if any((stage_maps.weights < 0).any() for _, stage_maps, _ in panels):
    note = f' Of negative weights, the absolute value is shown.{note}'
  figure, (first, *rest) = _grid(1 + len(panels), _ratio(pixels))
  first.imshow(pixels)
  first.set_title('image, with the token\nof each stage', fontsize=8)
  for axes, (name, stage_maps, head) in zip(rest, panels, strict=True):
    weights = np.abs(stage_maps.weights[head])
    # Weights of 0 are drawn in grey: outside the window, or decayed to it.
    weights = np.ma.masked_equal(weights / (weights.max() or 1), 0)
    image = _tokens(axes, pixels, weights, stage_maps.stride, 'inferno', (0, 1))
    for panel in (axes, first) if head == 0 else (axes,):
      _frame(panel, stage_maps.token, stage_maps.stride)
    distance = f'distance {stage_maps.distance[head]:.2f}'
    axes.set_title(f'{name}\n{distance}', fontsize=8)
  _hide_ticks([first, *rest])
  return _explained(
      figure,
      image,
      'Attention weights of the framed token, relative to the largest weight '
      'of each head; grey where it is 0, as outside the window. '
      'Distance: mean Manhattan distance under the weights, in tokens.' + note,
  )


def _decay(maps):
  """Draws the decay of each stage's heads, with zero offset in the middle."""
  panels, note = _heads(maps)
  panels = [panel for panel in panels if panel[1].kernel is not None]
  ratio = max(_ratio(stage_maps.kernel[0]) for _, stage_maps, _ in panels)
  figure, grid = _grid(len(panels), ratio)
  for axes, (name, stage_maps, head) in zip(grid, panels, strict=True):
    kernel = stage_maps.kernel[head]
    down, across = ((extent - 1) // 2 for extent in kernel.shape)
    image = axes.imshow(
        kernel,
        cmap='viridis',
        vmin=0,
        vmax=1,
        extent=(-across - 0.5, across + 0.5, down + 0.5, -down - 0.5),
    )
    axes.set(
        xticks=sorted({-across, 0, across}), yticks=sorted({-down, 0, down})
    )
    axes.tick_params(labelsize=6)
    rates = ', '.join(f'{rate:.3f}' for rate in stage_maps.rates[:, head])
    axes.set_title(f'{name}\n$\\gamma$ {rates}', fontsize=8)
  return _explained(
      figure,
      image,
      r'Decay $\gamma^{|dx|+|dy|}$ by the offset (dx, dy) between two tokens. '
      r'Two values of $\gamma$ are those along the width and the height.'
      + note,
  )


def _gate(maps, pixels):
  """Draws the image, and each stage's gate over it and alone, on one scale."""
  stages, note = _with_several_tokens(maps)
  neutral, colors = _GATES[maps.gate_fn]
  spread = max(np.abs(found.gate - neutral).max() for found in stages.values())
  scale = (neutral - spread, neutral + spread)
  # A large image, and two rows of panels to its right.
  count = len(stages)
  figure = _figure(2, count + 2, 1.6, _ratio(pixels))
  cells = figure.add_gridspec(2, count + 2)
  large = figure.add_subplot(cells[:, :2])
  large.imshow(pixels)
  large.set_title('image', fontsize=9)
  over, alone = (
      [figure.add_subplot(cells[row, column + 2]) for column in range(count)]
      for row in range(2)
  )
  _hide_ticks([large, *over, *alone])
  for upper, lower, number in zip(over, alone, stages, strict=True):
    gate, stride = stages[number].gate, stages[number].stride
    _lay_over(upper, pixels, gate, stride, 'RdBu_r', scale)
    image = _tokens(lower, pixels, gate, stride, 'RdBu_r', scale)
    upper.set_title(f'stage {number}\nmean {gate.mean():.2f}', fontsize=9)
  text = (
      f'Output gate ({maps.gate_fn}), mean over channels: over the image, and '
      f'alone. {colors}{note}'
  )
  return _explained(figure, image, text)


def _grad_cam(maps, pixels, class_name):
  """Draws the image, and Grad-CAM over it and alone."""
  figure = _figure(1, 3, 2.4, _ratio(pixels))
  first, over, alone = figure.subplots(1, 3)
  first.imshow(pixels)
  peak = maps.cam.max()
  strength = maps.cam / (peak or 1)
  _lay_over(over, pixels, strength, 1, 'inferno', (0, 1))
  image = _tokens(alone, pixels, strength, 1, 'inferno', (0, 1))
  titles = ('image', 'Grad-CAM over image', 'Grad-CAM alone')
  for axes, title in zip((first, over, alone), titles, strict=True):
    axes.set_title(title, fontsize=9)
  _hide_ticks((first, over, alone))
  class_name = printable(class_name).replace('$', r'\$')  # no mathematics
  text = (
      f'Evidence for {class_name} in the feature map of stage '
      f'{maps.cam_stage}, relative to its largest value.'
  )
  if not peak:
    text = f'Stage {maps.cam_stage} has no evidence for {class_name}.'
  return _explained(figure, image, text)


def _with_several_tokens(maps):
  """Returns stages of several tokens by number, and a note on the others."""
  stages = dict(enumerate(maps.stages, start=1))
  several = {n: each for n, each in stages.items() if each.weights[0].size > 1}
  left_out = ', '.join(str(n) for n in stages if n not in several)
  note = f' Not shown: stage {left_out}, of one token.' if left_out else ''
  return several, note


def _heads(maps):
  """Returns names, stages and heads to draw, and a note on the other stages.

  Of more than `MAX_HEADS` heads, evenly spaced ones with the first and the last
  are drawn.
  """
  stages, note = _with_several_tokens(maps)
  panels = []
  for number, stage_maps in stages.items():
    last = len(stage_maps.weights) - 1
    heads = np.linspace(0, last, min(last + 1, MAX_HEADS)).round().astype(int)
    panels += [(f'stage {number}, head {n}', stage_maps, n) for n in heads]
  return panels, note


def _grid(count, ratio):
  """Returns a figure and its panels, in rows that leave few cells empty."""
  columns = min(count, min(range(8, 4, -1), key=lambda wide: -count % wide))
  rows = math.ceil(count / columns)
  figure = _figure(rows, columns, 1.6, ratio)
  cells = figure.add_gridspec(rows, columns)
  return figure, [
      figure.add_subplot(cells[divmod(index, columns)])
      for index in range(count)
  ]


def _figure(rows, columns, side, ratio):
  """Returns a figure for panels `side` inches wide, `side * ratio` high."""
  # Imported here, and without `pyplot`: no window, no global state.
  from matplotlib.figure import Figure

  size = max(columns * side + 1, 4.5), rows * (side * ratio + 0.4) + 0.8
  return Figure(figsize=size, layout='constrained', dpi=_DPI)


def _hide_ticks(panels):
  for axes in panels:
    axes.set(xticks=[], yticks=[])


def _ratio(array):
  """Returns height over width."""
  return array.shape[0] / array.shape[1]


def _lay_over(axes, pixels, values, stride, colors, scale):
  """Draws tokens over their pixels, which show through in grey."""
  # Low contrast, so that the map determines colour and brightness.
  grey = 60 + 0.35 * pixels.mean(-1)
  axes.imshow(grey, cmap='gray', vmin=0, vmax=255)
  _tokens(axes, pixels, values, stride, colors, scale, alpha=0.65)


def _tokens(axes, pixels, values, stride, colors, scale, alpha=1.0):
  """Draws tokens at their pixels, clipped to the image."""
  height, width = pixels.shape[:2]
  rows, columns = (extent * stride for extent in values.shape)
  image = axes.imshow(
      values,
      cmap=colors,
      alpha=alpha,
      vmin=scale[0],
      vmax=scale[1],
      extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
      interpolation='nearest',
  )
  axes.set_facecolor('0.8')  # where values are masked
  axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
  return image


def _frame(axes, token, stride):
  """Frames the pixels of a token, clipped to the image."""
  from matplotlib.patches import Rectangle

  top, left = (index * stride - 0.5 for index in token)
  width = min(stride, axes.get_xlim()[1] - left)
  height = min(stride, axes.get_ylim()[0] - top)
  frame = Rectangle((left, top), width, height, fill=False, color='cyan')
  # With clipping, half of the line would vanish at the border of the image.
  frame.set(clip_on=False, zorder=3, linewidth=1.5)
  axes.add_patch(frame)


def _explained(figure, image, text):
  """Adds a caption, and a colour bar marked at its ends and in the middle."""
  ticks = np.linspace(*image.get_clim(), 3)
  figure.colorbar(image, ax=figure.axes, shrink=0.6, ticks=ticks, format='%.2f')
  figure.supxlabel(_wrap(figure, text), fontsize=9)
  return figure


def _wrap(figure, text):
  return textwrap.fill(text, int(figure.get_figwidth() * 13))


def _save(path, figure, title):
  from matplotlib.backends.backend_agg import FigureCanvasAgg

  # Letters that the font lacks, such as Chinese ones, are drawn as boxes.
  warnings.filterwarnings('ignore', message='Glyph')
  # A dollar sign in a file's name is no mathematics.
  title = _wrap(figure, printable(title))
  figure.suptitle(title, fontsize=10, parse_math=False)
  with files.replaced(path) as part:
    FigureCanvasAgg(figure).print_png(part)
  return path
