"""Axial attention from the equations, one query at a time, in float64.

Windows follow their definition in coordinates of the unshifted map: a query
sees the tokens of its line that lie in the same shifted block.
"""

import numpy as np


def blocks(extent, window, shift):
  if window is None or window >= extent:
    return np.zeros(extent, int), extent
  shift = min(shift, window // 2)
  position = np.arange(extent)
  if shift:
    return (position - shift + window) // window, window
  return position // window, window


def softmax_line(query, key, value, rate, slope, scale):
  """Computes Eq. 3 for a line of tokens `[l, d]` that all see each other."""
  out = np.zeros_like(value)
  for i in range(len(query)):
    score = np.array(
        [
            query[i] @ key[j] * scale
            + abs(i - j) * np.log(rate)
            + slope * (i - j)
            for j in range(len(key))
        ]
    )
    weight = np.exp(score - score.max())
    out[i] = weight / weight.sum() @ value
  return out


def sigmoid_line(query, key, value, rate, slope, scale, size):
  """Computes Eq. 7 for a line of tokens that all see each other."""
  out = np.zeros_like(value)
  for i in range(len(query)):
    for j in range(len(key)):
      score = query[i] @ key[j] * scale + slope * (i - j)
      out[i] += rate ** abs(i - j) / (1 + np.exp(-score)) / size * value[j]
  return out


def axial(line, query, key, value, window, shift, *, needs_size=False):
  """Applies the width pass, then the height pass.

  Args:
    line: Mixes one block; called with query, key, value `[l, d]`, head, axis
      and, if `needs_size`, the effective window.
  """
  batch, height, width, heads, _ = query.shape
  for axis, extent, across in ((0, width, height), (1, height, width)):
    block, size = blocks(extent, window, shift)
    out = np.zeros_like(value)
    for b, other, n in np.ndindex(batch, across, heads):
      for index in np.unique(block):
        along = np.flatnonzero(block == index)
        at = (b, other, along, n) if axis == 0 else (b, along, other, n)
        extra = (size,) if needs_size else ()
        out[at] = line(query[at], key[at], value[at], n, axis, *extra)
    value = out
  return value
