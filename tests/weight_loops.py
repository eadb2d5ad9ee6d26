"""Attention weights of one token, one pair at a time, in float64.

Written from the equations of the papers: the weight of a pair is the height
pass's weight of the row, times the width pass's weight of the column in that
row. Arrays are `[h, w, n, d]`.
"""

import loops
import numpy as np
import oracle


def row(system, query, key, rates, token, *, window, shift):
  """Returns the weights `[n, h, w]` of `token` for unrotated query and key.

  Args:
    system: 'rmt', 'retention' or 'swat'.
    query: `[h w n d]`.
    key: `[h w n d]`.
    rates: `gamma` `[2 n]`, width and height; `[1 n]` for full attention.
    token: Row and column.
    window: Nominal window; None for no windows.
    shift: Nominal shift.
  """
  query, key = (np.asarray(x, np.float64) for x in (query, key))
  height, width, heads, _ = query.shape
  i, j = token
  if system != 'swat':
    stride = width if window is None else min(window, width)
    y, x = np.indices((height, width))
    query, key = (
        oracle.rotate_pairs(part[None], y * stride + x)[0]
        for part in (query, key)
    )
  out = np.zeros((heads, height, width))
  for n in range(heads):
    if len(rates) == 1:
      out[n] = _all_pairs(query[:, :, n], key[:, :, n], rates[0, n], token)
      continue
    down = _line(
        system, query, key, rates, (slice(None), j), i, n, window, shift
    )
    for row_of_key in range(height):
      across = _line(
          system, query, key, rates, (row_of_key,), j, n, window, shift
      )
      out[n, row_of_key] = down[row_of_key] * across
  return out


def _line(system, query, key, rates, line, at, head, window, shift):
  """Returns the weights of position `at` on a row or column.

  `line` is one index for a row, two for a column.
  """
  q, k = query[line][:, head], key[line][:, head]
  axis = len(line) - 1  # 0 is the width pass
  block, size = loops.blocks(len(q), window, shift)
  if system == 'swat':
    q, k = (
        oracle.rotate_halves(x[None, :, None], np.arange(len(x)))[0, :, 0]
        for x in (q, k)
    )
  weights = np.zeros(len(q))
  for other in range(len(q)):
    if block[other] != block[at]:
      continue
    score = q[at] @ k[other]
    distance = abs(at - other)
    rate = rates[axis, head]
    if system == 'swat':
      slope = oracle.alibi_slopes(query.shape[2])[head]
      score += slope * (at - other)
      weights[other] = rate**distance / (1 + np.exp(-score)) / size
    else:
      weights[other] = rate**distance * np.exp(score / np.sqrt(q.shape[-1]))
  return weights if system == 'swat' else weights / weights.sum()


def _all_pairs(query, key, rate, token):
  weights = np.zeros(key.shape[:2])
  for y, x in np.ndindex(weights.shape):
    score = query[token] @ key[y, x] / np.sqrt(key.shape[-1])
    distance = abs(y - token[0]) + abs(x - token[1])
    weights[y, x] = np.exp(score) * rate**distance
  return weights / weights.sum()
