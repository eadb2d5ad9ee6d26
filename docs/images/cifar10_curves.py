"""Draws CIFAR-10 validation accuracy by epoch, next to the paper's Table 6.

python docs/images/cifar10_curves.py

cifar10_models.svg    the three models under the default reading
cifar10_readings.svg  RMT under five readings of the paper's protocol, JPEG copy
"""

import json
import pathlib
import runpy
from xml.sax import saxutils

WIDTH, HEIGHT = 760, 440
LEFT, TOP, RIGHT, BOTTOM = 56, 16, 550, 392  # of the plot, in pixels
EPOCHS, HIGHEST = 50, 90
LOWEST = {'cifar10_models': 70, 'cifar10_readings': 30}  # percent
INK, GRID = '#1f2933', '#d9dee3'
ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / 'results'
PAPER = runpy.run_path(str(ROOT / 'experiments' / 'paper.py'))['CIFAR10']
# Colours of the models.
MODELS = {'rmt': '#1b7837', 'retention': '#c77d1e', 'swat': '#2563a8'}
# For each picture: label and colour of each file in `results/`.
CURVES = {
    'cifar10_models': {
        'cifar10_rmt': ('RMT', MODELS['rmt']),
        'cifar10_retention': ('Retention', MODELS['retention']),
        'cifar10_swat': ('SWAT', MODELS['swat']),
    },
    'cifar10_readings': {
        'jpeg75/cifar10_rmt_rate_1e-3': ('torchvision, rate 1e-3', '#c77d1e'),
        'jpeg75/cifar10_rmt': ('torchvision, rate 3e-4', '#1b7837'),
        'jpeg75/cifar10_rmt_rate_1e-4': ('torchvision, rate 1e-4', '#7fbf7b'),
        'jpeg75/cifar10_rmt_plain_uniform': (
            'crop and flip, rate 1e-4',
            '#2563a8',
        ),
        'jpeg75/cifar10_rmt_deit': ('deit, rate 1e-4', '#8a4fa3'),
    },
}
# For each picture: colour of the paper's points of each model.
PRINTED = {'cifar10_models': MODELS, 'cifar10_readings': {'rmt': INK}}


def at(epoch, percent, lowest):
  """Returns the pixel of a point, as the text `x,y`."""
  x = LEFT + (RIGHT - LEFT) * epoch / EPOCHS
  y = BOTTOM - (BOTTOM - TOP) * (percent - lowest) / (HIGHEST - lowest)
  return f'{x:.1f},{y:.1f}'


def text(x, y, words, anchor='start', turn=''):
  """Returns a line of text."""
  return (
      f'<text x="{x}" y="{y}" font-size="13" text-anchor="{anchor}" '
      f'fill="{INK}"{turn}>{saxutils.escape(words)}</text>'
  )


def axes(lowest):
  """Yields grid lines, their numbers and the names of both axes."""
  for epoch in range(0, EPOCHS + 1, 10):
    x, _ = at(epoch, lowest, lowest).split(',')
    yield f'<path d="M{x},{TOP}V{BOTTOM}" stroke="{GRID}"/>'
    yield text(x, BOTTOM + 18, str(epoch), 'middle')
  step = 10 if HIGHEST - lowest > 30 else 5
  for percent in range(lowest, HIGHEST + 1, step):
    _, y = at(0, percent, lowest).split(',')
    yield f'<path d="M{LEFT},{y}H{RIGHT}" stroke="{GRID}"/>'
    yield text(LEFT - 8, float(y) + 4, str(percent), 'end')
  yield text((LEFT + RIGHT) / 2, BOTTOM + 38, 'epoch', 'middle')
  middle = (TOP + BOTTOM) / 2
  turn = f' transform="rotate(-90 16 {middle:g})"'
  yield text(16, middle, 'validation accuracy (%)', 'middle', turn)


def cross(point, color):
  """Returns a point of the paper."""
  shape = f'M{point}m-5,-5l10,10m0,-10l-10,10'
  return f'<path d="{shape}" stroke="{color}" stroke-width="2"/>'


def draw(picture):
  """Returns a picture as the text of an SVG file."""
  lowest, y = LOWEST[picture], 40
  parts = [*axes(lowest)]
  for name, (label, color) in CURVES[picture].items():
    entries = json.loads((RESULTS / f'{name}.json').read_text())['epochs']
    points = ' '.join(
        at(entry['epoch'], 100 * entry['val_accuracy'], lowest)
        for entry in entries
        if 100 * entry['val_accuracy'] >= lowest
    )
    line = f'fill="none" stroke="{color}" stroke-width="2"'
    parts.append(f'<polyline points="{points}" {line}/>')
    parts.append(f'<path d="M{RIGHT + 16},{y}h24" {line}/>')
    parts.append(text(RIGHT + 48, y + 4, label))
    y += 24
  for model, color in PRINTED[picture].items():
    for point in PAPER.models[model].curve.items():
      parts.append(cross(at(*point, lowest), color))
  parts.append(cross(f'{RIGHT + 28},{y}', INK))
  parts.append(text(RIGHT + 48, y + 4, 'paper, Table 6'))
  size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
  font = 'font-family="Helvetica, Arial, sans-serif"'
  first = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
  background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
  return '\n'.join([first, background, *parts, '</svg>\n'])


if __name__ == '__main__':
  for picture in CURVES:
    path = pathlib.Path(__file__).with_name(f'{picture}.svg')
    path.write_text(draw(picture))
