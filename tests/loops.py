"""Axial attention from the equations, one query at a time, in float64.

Windows follow their definition in coordinates of the unshifted map: a query
sees the tokens of its line that lie in the same shifted block.
"""

import numpy as np


def blocks(extent, window, shift):
  """Returns the block of each token, and the effective window."""
  if window is None or window >= extent:
    return np.zeros(extent, int), extent
  shift = min(shift, window // 2)
  position = np.arange(extent)
  if shift:
    return (position - shift + window) // window, window
  return position // window, window


def axial(line, query, key, value, window, shift):
  """Applies the width pass, then the height pass.

  Args:
    line: Mixes the tokens of a block, which all see each other; called with
      query, key, value `[l, d]`, head, axis and the effective window.
    query: Queries `[b, h, w, n, d]`; so are keys and values.
    key: Keys.
    value: Values.
    window: Nominal window; None for whole lines.
    shift: Nominal shift.
  """
  batch, height, width, heads, _ = query.shape
  for axis, extent, across in ((0, width, height), (1, height, width)):
    block, size = blocks(extent, window, shift)
    out = np.zeros_like(value)
    for b, other, n in np.ndindex(batch, across, heads):
      for index in np.unique(block):
        along = np.flatnonzero(block == index)
        at = (b, other, along, n) if axis == 0 else (b, along, other, n)
        out[at] = line(query[at], key[at], value[at], n, axis, size)
    value = out
  return value
