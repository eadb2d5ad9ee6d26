"""Per-head rates of the spatial decay, and balanced ALiBi slopes."""

import numpy as np


def decay_rates(num_heads: int, decay_range: float) -> np.ndarray:
  """RMT's decays `gamma_n = 1 - 2 ** (-2 - r n / N)`, n = 0 ... N - 1.

  RMT, eq. 8 with a = 2 and b = 2 + r; the end `b` itself is never reached.

  Args:
    num_heads: `N`.
    decay_range: `r`, how far the exponents spread over the heads.

  Returns:
    float64 `[n]` in (0, 1); the first is 0.75, later heads see farther.
  """
  exponent = 2 + decay_range * np.arange(num_heads) / num_heads
  return 1 - 2.0**-exponent


def decay_logits(num_heads: int, decay_range: float) -> np.ndarray:
  """`theta_0` with `sigmoid(theta_0) = decay_rates(...)`, float64 `[n]`."""
  rates = decay_rates(num_heads, decay_range)
  return np.log(rates / (1 - rates))


def balanced_slopes(num_heads: int) -> np.ndarray:
  """ALiBi slopes of both signs: heads 2k - 2 and 2k - 1 get -2**-k and +2**-k.

  Gated-SwinRMT, section 3.3, for k = 1 ... floor(N / 2). The signs alternate,
  because listing all negative slopes first would tie the heads of short reach
  to one direction. The last of an odd number of heads gets 0.

  Returns:
    float64 `[n]`.
  """
  slopes = np.zeros(num_heads)
  power = 2.0 ** -np.arange(1, num_heads // 2 + 1)
  slopes[: 2 * len(power) : 2] = -power
  slopes[1 : 2 * len(power) : 2] = power
  return slopes
