"""Draws docs/images/architecture.svg: model, block and attention.

python docs/images/architecture.py
"""

import pathlib
from xml.sax import saxutils

from gswinrmt_jax.models import named

MODEL, IMAGE = 'retention_large', 224
WIDTH, HEIGHT = 1040, 680
INK, LINE, PANEL = '#1f2933', '#52606d', '#ffffff'
SHARED, GATED, RETENTION, SWAT = '#e4e7eb', '#cfe8d5', '#cfe0f7', '#fbdcc0'
TOKEN = '#2563a8'
FONT = 'Helvetica, Arial, sans-serif'


def text(x, y, words, size=13, anchor='middle', weight='normal', fill=INK):
  """Returns lines of text; the first is at height `y`."""
  return ''.join(
      f'<text x="{x:g}" y="{y + 1.25 * size * row:g}" font-size="{size}" '
      f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">'
      f'{saxutils.escape(line)}</text>'
      for row, line in enumerate(words.split('\n'))
  )


def box(x, y, width, height, words, fill=SHARED, size=13):
  """Returns a box with centred lines of text."""
  lines = words.count('\n')
  first = y + height / 2 + size * 0.35 - 1.25 * size * lines / 2
  return (
      f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" '
      f'fill="{fill}" stroke="{LINE}"/>'
      + text(x + width / 2, first, words, size)
  )


def path(points, arrow=True):
  """Returns straight lines through points, with an arrow head at the end."""
  joined = ' L '.join(f'{x:g} {y:g}' for x, y in points)
  head = ' marker-end="url(#head)"' if arrow else ''
  return f'<path d="M {joined}" fill="none" stroke="{LINE}"{head}/>'


def junction(x, y, sign, fill=PANEL):
  """Returns a circle with a plus or a times sign."""
  return (
      f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{fill}" stroke="{LINE}"/>'
      + text(x, y + 5, sign, 15)
  )


def chain(x, y, height, parts, gap):
  """Returns boxes and junctions in a row, with arrows, and their places.

  Args:
    x: Left end of the first arrow.
    y: Middle of the row.
    height: Of the boxes.
    parts: `(width, words, fill)`, or the sign of a junction; a letter after
      it gives it Retention's colour.
    gap: Length of an arrow.
  """
  drawn, places = '', []
  for part in parts:
    width = 20 if isinstance(part, str) else part[0]
    drawn += path([(x, y), (x + gap - 2, y)])
    x += gap
    if isinstance(part, str):
      sign, fill = part[0], RETENTION if part[1:] else PANEL
      drawn += junction(x + 10, y, sign, fill)
    else:
      drawn += box(x, y - height / 2, width, height, *part[1:])
    places.append((x, x + width))
    x += width
  return drawn + path([(x, y), (x + gap, y)]), places, x + gap


def model():
  """Returns the first row: stem, stages, head."""
  arch = named.MODELS[MODEL]
  parts = [(84, 'stem\n4 convolutions\nstride 4', SHARED, 11)]
  for stage in range(arch.stages):
    side = IMAGE // arch.strides[stage]
    count = max(1, side // arch.window_size) ** 2
    words = (
        f'stage {stage + 1}\n{arch.depths[stage]} blocks\n'
        f'{arch.widths[stage]} channels\n{side}×{side} tokens\n'
        f'{count} window{"s" * (count > 1)}'
    )
    parts.append((104, words, SHARED, 12))
    if stage + 1 < arch.stages:
      parts.append((30, '÷2', SHARED, 12))
  parts.append((74, 'head\nLN, mean,\nlinear', SHARED, 11))
  drawn, _, end = chain(82, 110, 92, parts, 14)
  return (
      text(20, 32, 'Model', 16, 'start', 'bold')
      + text(
          80,
          32,
          f'{MODEL} at {IMAGE}×{IMAGE}: windows of {arch.window_size}×'
          f'{arch.window_size} tokens, shifted by {arch.window_size // 2} in '
          'every second block',
          13,
          'start',
      )
      + text(48, 107, f'image\n{IMAGE}×{IMAGE}', 12)
      + drawn
      + text(end + 4, 114, 'logits', 12, 'start')
  )


def block():
  """Returns the second row: three residual branches."""
  y = 265
  parts = [
      (70, 'CPE\ndw 3×3', SHARED, 12),
      '+',
      (40, 'LN', SHARED, 12),
      (86, 'attention', SHARED, 13),
      (92, 'LayerScale', GATED, 12),
      '+',
      (40, 'LN', SHARED, 12),
      (166, 'FFN: linear, GELU,\nh + LN(dw 3×3), linear', SHARED, 12),
      (92, 'LayerScale', GATED, 12),
      '+',
  ]
  drawn, places, end = chain(66, y, 52, parts, 19)
  for first, last in ((0, 1), (2, 5), (6, 9)):
    left, right = places[first][0] - 10, sum(places[last]) / 2
    skip = [(left, y), (left, y - 44), (right, y - 44), (right, y - 11)]
    drawn += path(skip)
  return (
      text(20, 205, 'Block', 16, 'start', 'bold')
      + text(58, y + 4, 'x', 14, 'end')
      + drawn
      + text(end + 6, y + 4, 'y', 14, 'start')
  )


def attention():
  """Returns the third row: projection, two passes, LCE, gate."""
  y = 420
  parts = [
      (104, 'linear\nq, k, v (v₂) (g)', SHARED, 12),
      (66, 'rotate\nq, k', SHARED, 12),
      (108, 'attend along\neach row', SHARED, 13),
      (108, 'attend along\neach column', SHARED, 13),
      '+',
      '×r',
      (66, 'linear\nW_o', SHARED, 12),
  ]
  drawn, places, end = chain(66, y, 52, parts, 24)
  value = places[0][1] - 20
  plus, times = sum(places[4]) / 2, sum(places[5]) / 2
  drawn += path([(value, y - 26), (value, y - 50), (306, y - 50)])
  drawn += box(308, y - 64, 100, 28, 'LCE: dw 5×5', SHARED, 12)
  drawn += path([(408, y - 50), (426, y - 50)])
  drawn += box(428, y - 64, 70, 28, 'conv 1×1', GATED, 12)
  drawn += path([(498, y - 50), (plus, y - 50), (plus, y - 11)])
  gate = places[0][0] + 24
  drawn += path([(gate, y - 26), (gate, y - 78), (times - 36, y - 78)])
  drawn += box(times - 34, y - 92, 68, 28, 'G1: σ(g)', RETENTION, 12)
  drawn += path([(times, y - 64), (times, y - 11)])
  return (
      text(20, 338, 'Attention', 16, 'start', 'bold')
      + text(58, y + 4, 'LN(x)', 13, 'end')
      + drawn
      + text(end + 6, y + 4, 'y', 14, 'start')
      + text(value + 6, y - 34, 'v', 12, 'start')
      + text(gate - 6, y - 34, 'g', 12, 'end')
  )


def grid(x, y, title, reads):
  """Returns 8×8 tokens in windows of 4, and what one token reads.

  Args:
    x: Left.
    y: Top.
    title: Text above.
    reads: Place of a token of the window -> its distance, or None.
  """
  cell, row, column = 15, 1, 2
  drawn = text(x + 4 * cell, y - 10, title, 12)
  for down in range(8):
    for right in range(8):
      inside = down < 4 and right < 4
      far = reads(down - row, right - column) if inside else None
      opacity = 0 if far is None else 0.62**far
      drawn += (
          f'<rect x="{x + right * cell}" y="{y + down * cell}" width="{cell}" '
          f'height="{cell}" fill="{TOKEN}" fill-opacity="{opacity:.2f}" '
          'stroke="#cbd2d9" stroke-width="0.7"/>'
      )
  for down in (0, 4):
    for right in (0, 4):
      drawn += (
          f'<rect x="{x + right * cell}" y="{y + down * cell}" '
          f'width="{4 * cell}" height="{4 * cell}" fill="none" '
          f'stroke="{INK}" stroke-width="1.4"/>'
      )
  return drawn


def passes():
  """Returns the last row: what a token reads, the weights, the colours."""
  drawn = grid(
      66, 510, 'row pass', lambda down, right: None if down else abs(right)
  )
  drawn += grid(
      214, 510, 'column pass', lambda down, right: None if right else abs(down)
  )
  drawn += grid(362, 510, 'both', lambda down, right: abs(down) + abs(right))
  drawn += text(
      66,
      650,
      'One token reads the tokens of its window. Its weights decay with '
      'distance;\nboth passes together decay with Manhattan distance.',
      12,
      'start',
  )
  x = 540
  drawn += text(x, 500, 'Attention weights of a pass', 13, 'start', 'bold')
  drawn += box(x, 512, 44, 26, 'RMT', SHARED, 12)
  drawn += box(x + 50, 512, 84, 26, 'Retention', RETENTION, 12)
  drawn += text(
      x + 146, 529, 'softmax(q·k / √d + |i − j| · log γ)', 13, 'start'
  )
  drawn += box(x + 50, 546, 84, 26, 'SWAT', SWAT, 12)
  drawn += text(
      x + 146, 563, 'σ(q·k + slope · (i − j)) / w · γ^|i − j|', 13, 'start'
  )
  drawn += text(x + 146, 583, 'and v · SiLU(v₂) for v; no gate G1', 12, 'start')
  drawn += text(x, 614, 'Components', 13, 'start', 'bold')
  for left, width, fill, words in (
      (0, 84, SHARED, 'all three'),
      (92, 150, GATED, 'Retention and SWAT'),
      (250, 84, RETENTION, 'Retention'),
      (342, 64, SWAT, 'SWAT'),
  ):
    drawn += box(x + left, 624, width, 26, words, fill, 12)
  return drawn


def draw():
  """Returns the SVG."""
  head = (
      '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
      f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" '
      f'fill="{LINE}"/></marker>'
  )
  drawn = (
      f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
      f'font-family="{FONT}"><title>Gated-SwinRMT: model, block and '
      f'attention</title><defs>{head}</defs>'
      # Its own background: it is read on light and dark pages.
      f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{PANEL}"/>'
      f'{model()}{block()}{attention()}{passes()}</svg>\n'
  )
  return drawn.replace('><', '>\n<')


if __name__ == '__main__':
  target = pathlib.Path(__file__).with_name('architecture.svg')
  target.write_text(draw(), encoding='utf-8')
