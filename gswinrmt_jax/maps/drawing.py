"""Pictures of the maps, drawn over their image."""

from collections.abc import Sequence
import pathlib
import textwrap

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.maps.computation import Maps

# The value of a gate at 0, neither open nor closed.
_NEUTRAL = {'sigmoid': 0.5, 'swish': 0.0}
MAX_HEADS = 8  # in a row; more would be too small to see


def write(
    directory: str | pathlib.Path,
    maps: Maps,
    picture: np.ndarray,
    *,
    title: str = '',
) -> list[pathlib.Path]:
  """Draws reach, decay, gate and Grad-CAM, each file whole or not at all.

  Args:
    directory: Folder for `attention_reach.png`, `grad_cam.png` and, if the
      model has such, `decay_kernels.png` and `gate.png`; created if it does not
      exist.
    maps: The maps to draw.
    picture: uint8 [h w 3], the image of the maps before normalisation.
    title: Title of every picture, such as the file and the predicted class.

  Returns:
    The paths.

  Raises:
    ValueError: If the picture has another type, or another size than the maps.
  """
  picture = np.asarray(picture)
  if picture.dtype != np.uint8 or picture.shape != (*maps.size, 3):
    raise ValueError(
        f'the picture is {picture.dtype} {picture.shape}, not uint8 '
        f'{(*maps.size, 3)}'
    )
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  figures = {
      'attention_reach.png': _reach(maps, picture),
      'grad_cam.png': _grad_cam(maps, picture),
  }
  if maps.stages[0].kernel is not None:
    figures['decay_kernels.png'] = _decay(maps)
  if maps.stages[0].gate is not None:
    figures['gate.png'] = _gate(maps, picture)
  return [
      _save(directory / name, figure, title) for name, figure in figures.items()
  ]


def _reach(maps, picture):
  """Rows of stages, columns of heads; bright where the token takes from."""
  figure, panels = _panels_of_heads(maps, _ratio(picture))
  for axes, stage_maps, head in panels:
    weights = np.abs(stage_maps.weights[head])
    # No colour outside the window.
    weights = np.ma.masked_equal(weights / (weights.max() or 1), 0)
    stride = stage_maps.stride
    image = _lay_over(axes, picture, weights, stride, 'inferno', (0, 1))
    _frame(axes, stage_maps.token, stride)
    distance = stage_maps.distance[head]
    axes.set_title(f'head {head}: {distance:.2f}', fontsize=8)
  return _explained(
      figure,
      image,
      (0, 0.5, 1),
      'What the framed token takes from every token, over the largest of the '
      'head. No colour: nothing, as outside its window. After the head: mean '
      'Manhattan distance in tokens.',
  )


def _decay(maps):
  """Rows of stages, columns of heads; zero offset in the middle."""
  ratio = max(_ratio(stage_maps.kernel[0]) for stage_maps in maps.stages)
  figure, panels = _panels_of_heads(maps, ratio)
  for axes, stage_maps, head in panels:
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
    rates = ' '.join(f'{rate:.3f}' for rate in stage_maps.rates[:, head])
    axes.set_title(f'head {head}: {rates}', fontsize=8)
  return _explained(
      figure,
      image,
      (0, 0.5, 1),
      'Decay by the offset in tokens. After the head: gamma along the width '
      'and the height, or one for both.',
  )


def _gate(maps, picture):
  """The image, then the gate of each stage on one scale around neutral."""
  gates = [stage_maps.gate for stage_maps in maps.stages]
  figure, panels = _image_and(picture, len(gates))
  neutral = _NEUTRAL[maps.gate_fn]
  spread = max(np.abs(gate - neutral).max() for gate in gates)
  scale = (neutral - spread, neutral + spread)
  for index, (axes, gate) in enumerate(zip(panels, gates, strict=True)):
    stride = maps.stages[index].stride
    image = _lay_over(axes, picture, gate, stride, 'RdBu_r', scale)
    axes.set_title(f'stage {index + 1}: mean {gate.mean():.3f}', fontsize=9)
  ticks = (scale[0], neutral, scale[1])
  text = f'Gate ({maps.gate_fn}), mean over the channels.'
  return _explained(figure, image, ticks, text, panels)


def _grad_cam(maps, picture):
  """The image, and the evidence for the class over it."""
  figure, panels = _image_and(picture, 1)
  peak = maps.cam.max()
  strength = maps.cam / (peak or 1)
  image = _lay_over(panels[0], picture, strength, 1, 'inferno', (0, 1))
  title = f'class {maps.label}, stage {maps.cam_stage}'
  panels[0].set_title(title if peak else f'{title}: no evidence', fontsize=9)
  text = 'Grad-CAM over its largest value.'
  return _explained(figure, image, (0, 0.5, 1), text, panels)


def _panels_of_heads(maps, ratio):
  """Returns a figure, and its panels with the maps of a stage and the head."""
  heads = [_heads_shown(len(stage_maps.weights)) for stage_maps in maps.stages]
  columns = max(map(len, heads))
  figure = _figure(len(heads), columns, 1.5, ratio)
  cells = figure.add_gridspec(len(heads), columns)
  panels = []
  for row, stage_maps in enumerate(maps.stages):
    for column, head in enumerate(heads[row]):
      axes = figure.add_subplot(cells[row, column])
      panels.append((axes, stage_maps, head))
      if not column:
        axes.set_ylabel(f'stage {row + 1}', fontsize=8)
  return figure, panels


def _image_and(picture, count):
  """Returns a figure that begins with the image, and panels beside it."""
  figure = _figure(1, count + 1, 2.4, _ratio(picture))
  first, *panels = figure.subplots(1, count + 1)
  first.imshow(picture)
  first.set(xticks=[], yticks=[])
  first.set_title('image', fontsize=9)
  return figure, panels


def _figure(rows, columns, side, ratio):
  """An empty figure for panels `side` inches wide, `ratio` times as high."""
  # Imported here, and without `pyplot`: no window, no global state.
  from matplotlib.figure import Figure

  size = max(columns * side + 1, 4.5), rows * (side * ratio + 0.4) + 0.6
  return Figure(figsize=size, layout='constrained')


def _heads_shown(count: int) -> Sequence[int]:
  """Heads to show: all, or as many as fit, the first and last among them."""
  shown = min(count, MAX_HEADS)
  return np.linspace(0, count - 1, shown).round().astype(int).tolist()


def _ratio(array):
  """Height over width."""
  return array.shape[0] / array.shape[1]


def _lay_over(axes, picture, values, stride, colors, scale):
  """Draws tokens over their pixels, clipped at the border of the image."""
  height, width = picture.shape[:2]
  rows, columns = (extent * stride for extent in values.shape)
  # Grey and of little contrast, so that colour and light are the map's.
  grey = 60 + 0.35 * picture.mean(-1)
  axes.imshow(grey, cmap='gray', vmin=0, vmax=255)
  image = axes.imshow(
      values,
      cmap=colors,
      alpha=0.65,
      vmin=scale[0],
      vmax=scale[1],
      extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
      interpolation='nearest',
  )
  axes.set(xticks=[], yticks=[])
  axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
  return image


def _frame(axes, token, stride):
  """Frames the pixels of a token, as far as the image reaches."""
  from matplotlib.patches import Rectangle

  top, left = (index * stride - 0.5 for index in token)
  width = min(stride, axes.get_xlim()[1] - left)
  height = min(stride, axes.get_ylim()[0] - top)
  frame = Rectangle((left, top), width, height, fill=False, color='cyan')
  # At the border of the image, half of the line would be clipped.
  frame.set(clip_on=False, zorder=3, linewidth=1.5)
  axes.add_patch(frame)


def _explained(figure, image, ticks, text, panels=None):
  """Adds a colour bar, with ticks that fit into the layout, and a caption."""
  panels = panels or figure.axes
  figure.colorbar(image, ax=panels, shrink=0.6, ticks=ticks, format='%.2f')
  figure.supxlabel(_wrap(figure, text), fontsize=9)
  return figure


def _wrap(figure, text):
  return textwrap.fill(text, int(figure.get_figwidth() * 13))


def _save(path, figure, title):
  from matplotlib.backends.backend_agg import FigureCanvasAgg

  figure.suptitle(_wrap(figure, title), fontsize=10)
  with files.replaced(path) as part:
    FigureCanvasAgg(figure).print_png(part)
  return path
