r"""The middle of RMT's FFN: GELU, depthwise convolution, LayerNorm, residual.

    h = GELU(z)    c = h * w + b    s = h + (c - mean_f c) / sigma scale + bias

XLA takes a pass each for the convolution, the statistics of the norm and the
sum forward, and four backward, of maps that are the widest of the model. Here
the convolution goes over the channels of a few tokens twice, first for `c` and
its statistics, then for `s`, with what the first wrote still in the cache; and
backward, with `g = ds scale` and `n = (c - mean_f c) / sigma`,

    m = mean_f g,  k = mean_f (g n),  dscale = sum_t ds n,  dbias = sum_t ds

is a kernel, and what needs them at all neighbours of a token another:

    dc = (g - m - n k) / sigma       db = sum_t dc
    dh[t] = ds[t] + sum_o dc[t - o] w[o]      dw[o] = sum_t h[t] dc[t - o]
    dz = dh GELU'(z)

for the offsets `o` of the convolution's taps. In units of `T F` (tokens by
hidden channels) that reads and writes 5 forward with GELU and 6 backward.
"""

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jaxtyping import Array, Float


from gswinrmt_jax.ops.arrays import wide, wide_dtype
from gswinrmt_jax.ops.gelu import value as gelu_value
from gswinrmt_jax.ops.layer_norm import EPSILON
from gswinrmt_jax.ops.traced import traced_once
from gswinrmt_jax.pallas import launch
from gswinrmt_jax.pallas.gelu import gelu_and_slope
from gswinrmt_jax.pallas.taps import Taps

_FORWARD_ROWS = 32
_ROWS = 128
_TILES = 4  # of the kernel's gradient, one after the other in a program


@traced_once()
def gelu_conv_norm(
    z: Float[Array, 'b h w f'],
    kernel: Float[Array, 'k k 1 f'],
    conv_bias: Float[Array, ' f'],
    scale: Float[Array, ' f'],
    bias: Float[Array, ' f'],
) -> Float[Array, 'b h w f']:
  """Returns `h + LN(DWConv(h))` of `h = GELU(z)`.

  The backward pass keeps `z` and what the convolution gave.

  Args:
    z: What the first linear layer of the FFN gives.
    kernel: Of the depthwise convolution, padded with zeros to the same size.
    conv_bias: Added behind it.
    scale: Of the LayerNorm.
    bias: Of the LayerNorm.

  Returns:
    The sum, computed in float32 at least, in `z.dtype`.
  """
  return _branch(z, kernel, conv_bias, scale, bias)


@jax.custom_vjp
def _branch(z, kernel, conv_bias, scale, bias):
  return _branch_forward(z, kernel, conv_bias, scale, bias)[0]


def _branch_forward(z, kernel, conv_bias, scale, bias):
  taps = Taps(*z.shape[1:3], kernel.shape[0])
  matrix = z.reshape(-1, z.shape[-1])
  tokens, channels = matrix.shape
  wide_type = wide_dtype(z.dtype)
  hidden = gelu_value(wide(matrix)).astype(z.dtype)
  weights = wide(kernel).reshape(-1)
  like = jax.ShapeDtypeStruct(matrix.shape, z.dtype)
  per_token = jax.ShapeDtypeStruct((tokens,), wide_type)
  convolved, out, mean, inverse = launch.launch(
      functools.partial(_forward_kernel, taps=taps),
      lax.optimization_barrier(hidden),
      weights,
      *map(wide, (conv_bias, scale, bias)),
      grid=(pl.cdiv(tokens, _FORWARD_ROWS),),
      out=(like, like, per_token, per_token),
      warps=4,
  )
  parameters = kernel, conv_bias, scale, bias
  residuals = z, convolved, mean, inverse, weights, parameters
  return out.reshape(z.shape), residuals


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
  step = launch.tile_of(channels)
  rows = launch.span(pl.program_id(0) * _FORWARD_ROWS, _FORWARD_ROWS)
  valid = rows < tokens
  neighbours = taps.neighbours(rows, valid)

  def convolve(chunk, statistics):
    columns = launch.span(chunk * step, step)
    total = launch.load_vector(conv_bias, columns)[None]
    for tap, (there, inside) in enumerate(neighbours):
      factor = launch.load_vector(weights, tap * channels + columns)
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
    tile *= launch.load_vector(scale, columns)
    tile += launch.load_vector(bias, columns)
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


def _branch_backward(residuals, ds):
  z, convolved, mean, inverse, weights, parameters = residuals
  kernel, conv_bias, scale, bias = parameters
  matrix = z.reshape(-1, z.shape[-1])
  ds_matrix = ds.reshape(matrix.shape)
  tokens, channels = matrix.shape
  tiles = pl.cdiv(tokens, _ROWS)
  per_token = jax.ShapeDtypeStruct((tokens,), mean.dtype)
  sums = jax.ShapeDtypeStruct((tiles * channels,), mean.dtype)
  given = ds_matrix, convolved, mean, inverse, wide(scale)
  along, across, dscale, dbias = launch.launch(
      _norm_kernel,
      *given,
      grid=(tiles,),
      out=(per_token, per_token, sums, sums),
      warps=8,
  )
  step = launch.tile_of(channels)
  groups = pl.cdiv(tiles, _TILES)
  taps = Taps(*z.shape[1:3], kernel.shape[0])
  dz, dtaps = launch.launch(
      functools.partial(_gradient_kernel, taps=taps),
      *given,
      along,
      across,
      matrix,
      weights,
      grid=(groups, channels // step),
      out=(
          jax.ShapeDtypeStruct(matrix.shape, z.dtype),
          jax.ShapeDtypeStruct(
              (groups * (taps.count + 1) * channels,), mean.dtype
          ),
      ),
      warps=8,
  )
  dtaps = dtaps.reshape(groups, -1, channels).sum(0)
  dscale, dbias = (
      part.reshape(tiles, channels).sum(0) for part in (dscale, dbias)
  )
  return (
      dz.reshape(z.shape),
      dtaps[:-1].reshape(kernel.shape).astype(kernel.dtype),
      dtaps[-1].astype(conv_bias.dtype),
      dscale.astype(scale.dtype),
      dbias.astype(bias.dtype),
  )


def _norm_kernel(
    ds, convolved, mean, inverse, scale, along, across, dscale, dbias
):
  """`m` and `k` of each token, and parts of the sums over tokens."""
  tokens, channels = ds.shape
  step = launch.tile_of(channels)
  program = pl.program_id(0)
  rows = launch.span(program * _ROWS, _ROWS)
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
    factor = launch.load_vector(scale, columns)
    m, k = totals
    return m + (gradient * factor).sum(1), k + (product * factor).sum(1)

  zeros = jnp.zeros((_ROWS,), along.dtype)
  m, k = lax.fori_loop(0, channels // step, add, (zeros, zeros))
  launch.store_vector(along, rows, m / channels, valid)
  launch.store_vector(across, rows, k / channels, valid)


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
  """`dz` of some channels of some tiles, and parts of `dw` and `db`."""
  tokens, channels = ds.shape
  step = launch.tile_of(channels)
  columns = launch.span(pl.program_id(1) * step, step)
  group = pl.program_id(0)
  scale = launch.load_vector(scale, columns)
  factors = [
      launch.load_vector(weights, tap * channels + columns)
      for tap in range(taps.count)
  ]

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
    rows = launch.span((group * _TILES + tile) * _ROWS, _ROWS)
    valid = rows < tokens
    before = launch.load(z, rows, columns, valid)
    hidden, slope = gelu_and_slope(before)
    hidden = wide(hidden.astype(dz.dtype))  # as forward
    total = launch.load(ds, rows, columns, valid)
    added = []
    for there, factor in zip(
        taps.neighbours(rows, valid, sign=-1), factors, strict=True
    ):
      gradient = norm_gradient(*there)
      total += gradient * factor
      added.append((gradient * hidden).sum(0))
    added.append(norm_gradient(rows, valid).sum(0))
    launch.store(dz, rows, columns, valid, total * slope)
    return [old + new for old, new in zip(sums, added, strict=True)]

  zeros = [jnp.zeros((step,), mean.dtype)] * (taps.count + 1)
  sums = lax.fori_loop(0, _TILES, add, zeros)
  for tap, total in enumerate(sums):
    parts = (group * (taps.count + 1) + tap) * channels + columns
    launch.store_vector(dtaps, parts, total)


_branch.defvjp(_branch_forward, _branch_backward)
