"""Attention weights of one token by the oracle, in float64.

Each value is the unit vector of its token, so the output is the weights.
"""

import numpy as np
import oracle


def row(system, query, key, rates, token, *, window, shift):
  """Returns the weights `[n h w]` of `token` for unrotated query and key.

  Args:
    system: 'rmt', 'retention' or 'swat'.
    query: `[h w n d]`.
    key: `[h w n d]`.
    rates: `gamma` `[2 n]`, width and height; `[1 n]` for full attention.
    token: Row and column.
    window: Nominal window; None for no windows.
    shift: Nominal shift, 0 or half the window.
  """
  height, width, heads, _ = query.shape
  units = np.eye(height * width).reshape(1, height, width, 1, -1)
  maps = (
      np.float64(query[None]),
      np.float64(key[None]),
      units.repeat(heads, 3),
  )
  log_decay = np.log(rates)
  if len(rates) == 1:
    out = oracle.attend_all(*maps, log_decay[0])
  else:
    out = oracle.attend_windows(system, *maps, log_decay, window, bool(shift))
  return out[0, *token].reshape(heads, height, width)
