r"""The kernels of `pallas.ffn`.

Maps are matrices, `[t f]`: tokens of all images by channels. A program has some
tokens and goes over their channels, or some of both where it sums over tokens.
"""

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import wide, wide_dtype
from gswinrmt_jax.ops.layer_norm import EPSILON
from gswinrmt_jax.pallas import launch
from gswinrmt_jax.pallas.gelu import gelu_and_slope
from gswinrmt_jax.pallas.taps import Taps

# Tokens and channels of a tile, by kernel: as many as fit into registers.
_CHANNELS = 64
_FORWARD_ROWS = 32
_NORM_ROWS = 128
_GRADIENT_ROWS, _GRADIENT_CHANNELS = 32, 32
_TILES = 16  # of a program of the last, which adds up their sums


def convolve_and_add(
    hidden: Float[Array, 't f'],
    weights: Float[Array, ' kkf'],
    conv_bias: Float[Array, ' f'],
    scale: Float[Array, ' f'],
    bias: Float[Array, ' f'],
    taps: Taps,
) -> tuple[Array, ...]:
  """Returns `c`, `s`, and of `c` the mean and `1 / sigma` of each token."""
  tokens, _ = hidden.shape
  like = jax.ShapeDtypeStruct(hidden.shape, hidden.dtype)
  per_token = jax.ShapeDtypeStruct((tokens,), wide_dtype(hidden.dtype))
  return launch.run(
      functools.partial(_forward_kernel, taps=taps),
      hidden,
      weights,
      conv_bias,
      scale,
      bias,
      name='ffn_forward',
      grid=(pl.cdiv(tokens, _FORWARD_ROWS),),
      out=(like, like, per_token, per_token),
      warps=4,
  )


def _forward_kernel(
    hidden,
    weights,
    conv_bias,
    scale,
    bias,
    convolved,
    out,
    mean_out,
    inverse_out,
    *,
    taps,
):
  tokens, channels = hidden.shape
  step = launch.tile_of(channels, _CHANNELS)
  rows = launch.span(pl.program_id(0) * _FORWARD_ROWS, _FORWARD_ROWS)
  valid = rows < tokens
  neighbours = taps.neighbours(rows, valid)

  def convolve(chunk, statistics):
    columns = launch.span(chunk * step, step)
    total = launch.load_row(conv_bias, columns)
    for tap, (there, inside) in enumerate(neighbours):
      factor = launch.load_row(weights, tap * channels + columns)
      total += launch.load(hidden, there, columns, inside) * factor
    total = total.astype(convolved.dtype)
    launch.store(convolved, rows, columns, valid, total)
    return _merged(*statistics, chunk * step, wide(total))

  zeros = jnp.zeros((_FORWARD_ROWS,), mean_out.dtype)
  chunks = channels // step
  mean, squares = lax.fori_loop(0, chunks, convolve, (zeros, zeros))
  inverse = lax.rsqrt(squares / channels + EPSILON)
  launch.store_vector(mean_out, rows, mean, valid)
  launch.store_vector(inverse_out, rows, inverse, valid)
  launch.wait_for_stores()

  def add(chunk, _):
    columns = launch.span(chunk * step, step)
    tile = launch.load(convolved, rows, columns, valid)
    tile = (tile - mean[:, None]) * inverse[:, None]
    tile *= launch.load_row(scale, columns)
    tile += launch.load_row(bias, columns)
    tile += launch.load(hidden, rows, columns, valid)
    launch.store(out, rows, columns, valid, tile)

  lax.fori_loop(0, chunks, add, None)


def _merged(mean, squares, count, tile):
  """Adds a tile to the mean and the squared deviations of `count` channels.

  Not `E[c^2] - E[c]^2`, which is 0 for a token whose mean is large beside its
  deviation.
  """
  width = tile.shape[1]
  own = tile.sum(1) / width
  own_squares = jnp.square(tile - own[:, None]).sum(1)
  away = own - mean
  share = width / (count + width)
  squares += own_squares + jnp.square(away) * (count * share)
  return mean + away * share, squares


def norm_sums(
    ds: Float[Array, 't f'],
    convolved: Float[Array, 't f'],
    mean: Float[Array, ' t'],
    inverse: Float[Array, ' t'],
    scale: Float[Array, ' f'],
) -> tuple[Array, ...]:
  """Returns `m` and `k` of each token, and `dscale` and `dbias`."""
  tokens, channels = ds.shape
  programs = pl.cdiv(tokens, _NORM_ROWS)
  per_token = jax.ShapeDtypeStruct((tokens,), mean.dtype)
  parts = jax.ShapeDtypeStruct((programs * channels,), mean.dtype)
  m, k, *sums = launch.run(
      _norm_kernel,
      ds,
      convolved,
      mean,
      inverse,
      scale,
      name='ffn_norm_sums',
      grid=(programs,),
      out=(per_token, per_token, parts, parts),
      warps=8,
  )
  return m, k, *(each.reshape(programs, channels).sum(0) for each in sums)


def _norm_kernel(
    ds, convolved, mean, inverse, scale, along, across, dscale, dbias
):
  """Writes `m` and `k`, and parts of `dscale` and `dbias`, a row a program."""
  tokens, channels = ds.shape
  step = launch.tile_of(channels, _CHANNELS)
  program = pl.program_id(0)
  rows = launch.span(program * _NORM_ROWS, _NORM_ROWS)
  valid = rows < tokens
  mean, inverse = (
      launch.load_vector(each, rows, valid)[:, None] for each in (mean, inverse)
  )

  def add(chunk, totals):
    columns = launch.span(chunk * step, step)
    gradient = launch.load(ds, rows, columns, valid)
    normalized = launch.load(convolved, rows, columns, valid) - mean
    normalized *= inverse
    product = gradient * normalized
    parts = program * channels + columns
    launch.store_vector(dscale, parts, product.sum(0))
    launch.store_vector(dbias, parts, gradient.sum(0))
    factor = launch.load_row(scale, columns)
    m, k = totals
    return m + (gradient * factor).sum(1), k + (product * factor).sum(1)

  zeros = jnp.zeros((_NORM_ROWS,), along.dtype)
  m, k = lax.fori_loop(0, channels // step, add, (zeros, zeros))
  launch.store_vector(along, rows, m / channels, valid)
  launch.store_vector(across, rows, k / channels, valid)


def gradients(
    ds: Float[Array, 't f'],
    convolved: Float[Array, 't f'],
    mean: Float[Array, ' t'],
    inverse: Float[Array, ' t'],
    scale: Float[Array, ' f'],
    m: Float[Array, ' t'],
    k: Float[Array, ' t'],
    z: Float[Array, 't f'],
    weights: Float[Array, ' kkf'],
    taps: Taps,
) -> tuple[Float[Array, 't f'], Float[Array, 'kk f'], Float[Array, ' f']]:
  """Returns `dz`, `dw` and `db`."""
  tokens, channels = ds.shape
  groups = pl.cdiv(tokens, _GRADIENT_ROWS * _TILES)
  parts = jax.ShapeDtypeStruct(
      (groups * (taps.count + 1) * channels,), mean.dtype
  )
  dz, sums = launch.run(
      functools.partial(_gradient_kernel, taps=taps),
      ds,
      convolved,
      mean,
      inverse,
      scale,
      m,
      k,
      z,
      weights,
      name='ffn_gradients',
      grid=(groups, channels // launch.tile_of(channels, _GRADIENT_CHANNELS)),
      out=(jax.ShapeDtypeStruct(z.shape, z.dtype), parts),
      warps=8,
  )
  sums = sums.reshape(groups, -1, channels).sum(0)
  return dz, sums[:-1], sums[-1]


def _gradient_kernel(
    ds,
    convolved,
    mean,
    inverse,
    scale,
    along,
    across,
    z,
    weights,
    dz,
    dtaps,
    *,
    taps,
):
  """Writes `dz`, and parts of `dw` and `db`, which come behind the taps."""
  tokens, channels = ds.shape
  step = launch.tile_of(channels, _GRADIENT_CHANNELS)
  columns = launch.span(pl.program_id(1) * step, step)
  group = pl.program_id(0)
  scale = launch.load_row(scale, columns)

  def norm_gradient(there, inside):
    vectors = (
        launch.load_vector(each, there, inside)[:, None]
        for each in (mean, inverse, along, across)
    )
    own_mean, own_inverse, m, k = vectors
    normalized = launch.load(convolved, there, columns, inside) - own_mean
    normalized *= own_inverse
    gradient = launch.load(ds, there, columns, inside) * scale
    return (gradient - m - normalized * k) * own_inverse

  def add(tile, sums):
    rows = launch.span((group * _TILES + tile) * _GRADIENT_ROWS, _GRADIENT_ROWS)
    valid = rows < tokens
    hidden, slope = gelu_and_slope(launch.load(z, rows, columns, valid))
    hidden = wide(hidden.astype(dz.dtype))  # as forward
    total = launch.load(ds, rows, columns, valid)
    added = []
    for tap, there in enumerate(taps.neighbours(rows, valid, sign=-1)):
      gradient = norm_gradient(*there)
      factor = launch.load_row(weights, tap * channels + columns)
      total += gradient * factor
      added.append((gradient * hidden).sum(0))
      if tap == taps.count // 2:
        own = gradient.sum(0)
    added.append(own)
    launch.store(dz, rows, columns, valid, total * slope)
    return [old + new for old, new in zip(sums, added, strict=True)]

  zeros = [jnp.zeros((step,), mean.dtype)] * (taps.count + 1)
  sums = lax.fori_loop(0, _TILES, add, zeros)
  for tap, total in enumerate(sums):
    parts = (group * (taps.count + 1) + tap) * channels + columns
    launch.store_vector(dtaps, parts, total)
