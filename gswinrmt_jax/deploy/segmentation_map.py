"""The class of each pixel of an image, as an array, a table and an image."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from gswinrmt_jax import files
from gswinrmt_jax.data import label_colors
from gswinrmt_jax.terminal import printable

_LINE, _GAP = 22, 8  # height of a legend line, and its margin, in pixels


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentationMap:
  """The class of each pixel of one image.

  Its text is a table of the classes present, the largest first.

  Attributes:
    image: Path of the image, or 'image' if it was not read from a file.
    pixels: The image, uint8 `[h w 3]`.
    label: The class of each pixel, uint8 `[h w]`.
    names: Names of all classes, by number.
  """

  image: str
  pixels: np.ndarray = dataclasses.field(repr=False)
  label: np.ndarray = dataclasses.field(repr=False)
  names: tuple[str, ...]

  def shares(self) -> list[tuple[int, float]]:
    """Returns the classes present and their shares, the largest first."""
    counts = np.bincount(self.label.ravel())
    order = np.argsort(-counts, kind='stable')
    return [(int(k), counts[k] / self.label.size) for k in order if counts[k]]

  def __str__(self) -> str:
    rows = (f'  {share:7.2%}  {self.names[k]}' for k, share in self.shares())
    return '\n'.join([printable(self.image), *rows])

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON values: the image and the share of each class."""
    return {
        'image': self.image,
        'classes': [
            {'label': k, 'name': self.names[k], 'share': share}
            for k, share in self.shares()
        ],
    }

  def labels_image(self) -> Image.Image:
    """Returns a palette image whose values are the classes.

    The palette has the colours of `overlay`.
    """
    image = Image.fromarray(self.label, 'P')
    image.putpalette(label_colors.palette(len(self.names)).tobytes())
    return image

  def overlay(self) -> Image.Image:
    """Returns the image blended with the colours of its classes.

    A legend to the right shows colour, share and name of the largest classes,
    as many as fit.
    """
    covered = label_colors.overlay(self.pixels, self.label, len(self.names))
    font = label_colors.font(_LINE - 8)
    height, width = self.label.shape
    lines = self.shares()[: max(1, (height - _GAP) // _LINE)]
    texts = [f'{share:6.1%}  {self.names[k]}' for k, share in lines]
    left = width + 2 * _GAP + _LINE
    across = left + int(max(map(font.getlength, texts))) + _GAP
    drawn = Image.new(
        'RGB', (across, max(height, _LINE * len(lines) + _GAP)), 'white'
    )
    drawn.paste(Image.fromarray(covered))
    draw = ImageDraw.Draw(drawn)
    colors = label_colors.palette(len(self.names)).tolist()
    for row, ((k, _), text) in enumerate(zip(lines, texts, strict=True)):
      top = row * _LINE + _GAP
      box = width + _GAP, top, width + _LINE, top + _LINE - _GAP
      draw.rectangle(box, fill=tuple(colors[k]))
      middle = top + (_LINE - _GAP) // 2
      draw.text((left, middle), text, 'black', font, 'lm')
    return drawn

  def write(self, path: pathlib.Path) -> list[pathlib.Path]:
    """Writes `PATH_overlay.png` and `PATH_labels.png`; returns these paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = {'overlay': self.overlay(), 'labels': self.labels_image()}
    written = {path.with_name(f'{path.name}_{k}.png'): drawn[k] for k in drawn}
    for file, image in written.items():
      with files.replaced(file) as part:
        image.save(part, 'PNG')
    return [*written]
