r"""The three models once more, in float64 numpy, written from the papers alone.

`forward` computes RMT, Gated-SwinRMT-Retention and Gated-SwinRMT-SWAT from the
image to the logits in evaluation mode. It shares no line with the package and
does the opposite of it wherever there is a choice: shifted windows are the
Swin sequence (pad, roll, cut, mask, undo), windows, rows and columns are loops,
and nothing is fused. Its own tests are in `oracle_test.py`.

Letters: b batch, h w rows and columns, c channels, n heads, d channels of one
head, l positions on a line; a capital is the key side (`l` asks, `L` is asked).
"""

import itertools
import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


# ------------------------------------------------------------------- layers


def sigmoid(x):
  return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x):
  return x * sigmoid(x)


def gelu(x):
  """Exact: x times the normal distribution function."""
  return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def dense(tree, x):
  return x @ tree['kernel'] + tree['bias']


def layer_norm(tree, x):
  mean = x.mean(-1, keepdims=True)
  variance = ((x - mean) ** 2).mean(-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + 1e-6) * tree['scale'] + tree['bias']


def batch_norm(tree, statistics, x):
  """Evaluation mode: the running statistics."""
  x = (x - statistics['mean']) / np.sqrt(statistics['var'] + 1e-5)
  return x * tree['scale'] + tree['bias']


def conv(tree, x, stride=1, depthwise=False):
  """A convolution padded by half the (odd) kernel on every side.

  Kernels are `[rows, columns, in, out]`; depthwise `[rows, columns, 1, c]`.
  """
  kernel = tree['kernel']
  rows, columns = kernel.shape[:2]
  height = -(-x.shape[1] // stride)
  width = -(-x.shape[2] // stride)
  top, left = rows // 2, columns // 2
  padded = np.pad(x, ((0, 0), (top, top), (left, left), (0, 0)))
  out = np.zeros((len(x), height, width, kernel.shape[3]))
  for i, j in itertools.product(range(rows), range(columns)):
    seen = padded[:, i::stride, j::stride][:, :height, :width]
    if depthwise:
      out += seen * kernel[i, j, 0]
    else:
      out += seen @ kernel[i, j]
  return out + tree['bias']


# ---------------------------------------------------------- decay, positions


def fixed_log_decay(num_heads, decay_range):
  """RMT Eq. 8, with a = 2 and r = b - a: gamma_n = 1 - 2^(-2 - r n / N)."""
  exponent = -2.0 - decay_range * np.arange(num_heads) / num_heads
  return np.log(1.0 - 2.0**exponent)


def alibi_slopes(num_heads):
  """-1/2, +1/2, -1/4, +1/4, ...; a last head without partner gets 0."""
  slopes = np.zeros(num_heads)
  for k in range(1, num_heads // 2 + 1):
    slopes[2 * k - 2] = -(2.0**-k)
    slopes[2 * k - 1] = 2.0**-k
  return slopes


def rotate_pairs(x, position):
  """Theta-shift RoPE (Eq. 4): channels 2m, 2m+1 turn by one angle.

  The schedule is RMT's: 10000^-t, t from 0 to 1 *inclusive* in d/2 steps.

  `x` is `[b *positions n d]`, `position` is `[*positions]`.
  """
  out = np.empty_like(x)
  frequencies = 10000.0 ** -np.linspace(0.0, 1.0, x.shape[-1] // 2)
  for m, frequency in enumerate(frequencies):
    angle = (position * frequency)[..., None]
    first, second = x[..., 2 * m], x[..., 2 * m + 1]
    out[..., 2 * m] = first * np.cos(angle) - second * np.sin(angle)
    out[..., 2 * m + 1] = second * np.cos(angle) + first * np.sin(angle)
  return out


def rotate_halves(x, position):
  """Standard RoPE: channels j and j + d/2 turn by position 10000^(-2j/d)."""
  out = np.empty_like(x)
  half = x.shape[-1] // 2
  for j in range(half):
    angle = (position * 10000.0 ** (-2.0 * j / x.shape[-1]))[..., None]
    first, second = x[..., j], x[..., half + j]
    out[..., j] = first * np.cos(angle) - second * np.sin(angle)
    out[..., half + j] = second * np.cos(angle) + first * np.sin(angle)
  return out


# -------------------------------------------------------------- one sequence


def masked_softmax(scores, allowed):
  """Softmax over the allowed keys; zeros for a query that has none."""
  weights = np.zeros_like(scores)
  for query, keys in enumerate(allowed):
    if keys.any():
      row = scores[..., query, keys]
      row = np.exp(row - row.max(-1, keepdims=True))
      weights[..., query, keys] = row / row.sum(-1, keepdims=True)
  return weights


def softmax_line(query, key, value, allowed, distance, log_decay):
  """softmax(q k / sqrt(d) + distance log gamma) v (Eq. 3) of `[b l n d]`."""
  scores = np.einsum('blnd,bLnd->bnlL', query, key) / math.sqrt(query.shape[-1])
  scores = scores + distance * log_decay[:, None, None]
  return np.einsum('bnlL,bLnd->blnd', masked_softmax(scores, allowed), value)


def sigmoid_line(query, key, value, allowed, log_decay):
  """sigmoid(q k + slope (i - j)) / w_s gamma^|i - j| v (Eq. 7), `[b l n d]`.

  The window size w_s is the length of the line.
  """
  length, num_heads = query.shape[1:3]
  index = np.arange(length)
  distance = index[:, None] - index[None, :]  # query minus key, signed
  query, key = rotate_halves(query, index), rotate_halves(key, index)
  scores = np.einsum('blnd,bLnd->bnlL', query, key)
  scores = scores + alibi_slopes(num_heads)[:, None, None] * distance
  weights = sigmoid(scores) / length
  weights = weights * np.exp(log_decay[:, None, None] * np.abs(distance))
  return np.einsum('bnlL,bLnd->blnd', np.where(allowed, weights, 0.0), value)


# ------------------------------------------------------------------- windows


def effective_window(extent, window, shifted):
  """Eq. 9 on one axis: the window, and its shift if the block is shifted.

  `window` None is the whole axis. One window is global attention: no shift.
  """
  if window is None or window >= extent:
    return extent, 0
  return window, window // 2 if shifted else 0


def swin_regions(height, width, windows, shifts):
  """Swin's region ids of a padded map, in rolled coordinates, `[h w]`.

  Its nine slices: all but the last window, the last one up to the seam, and
  behind the seam, on each axis. An axis that is not shifted has one region.
  """
  slices = []
  for window, shift in zip(windows, shifts, strict=True):
    cuts = slice(0, -window), slice(-window, -shift), slice(-shift, None)
    slices.append(cuts if shift else (slice(None),))
  ids = np.zeros((height, width), int)
  for region, (rows, columns) in enumerate(itertools.product(*slices)):
    ids[rows, columns] = region
  return ids


def attend_window(system, query, key, value, region, real, log_decay):
  """One window `[b h w n d]`: a pass over each row, then over each column.

  `region` and `real` are `[h w]`: tokens of different regions do not see each
  other, and nobody sees a padded one. `log_decay` is `[2 n]`: width, height.
  """
  height, width = region.shape
  row, column = np.indices(region.shape)
  if system != 'swat':
    query = rotate_pairs(query, row * width + column)
    key = rotate_pairs(key, row * width + column)

  def attend(line, value, rates):
    """`line` picks a row or a column of the window."""
    allowed = region[line][:, None] == region[line][None, :]
    allowed = allowed & real[line][None, :]
    q, k, v = (x[:, *line] for x in (query, key, value))
    if system == 'swat':
      return sigmoid_line(q, k, v, allowed, rates)
    index = np.arange(len(allowed))
    distance = np.abs(index[:, None] - index[None, :])
    return softmax_line(q, k, v, allowed, distance, rates)

  after_width, out = np.zeros_like(value), np.zeros_like(value)
  for i in range(height):
    after_width[:, i] = attend((i, slice(None)), value, log_decay[0])
  for j in range(width):
    out[:, :, j] = attend((slice(None), j), after_width, log_decay[1])
  return out


def attend_windows(
    system, query, key, value, log_decay, window=None, shifted=False
):
  """The Swin sequence: pad, roll, cut, mask, attend, join, roll back, crop."""
  height, width = query.shape[1:3]
  window_h, shift_h = effective_window(height, window, shifted)
  window_w, shift_w = effective_window(width, window, shifted)
  below, right = -height % window_h, -width % window_w

  def enter(x):
    edges = ((0, 0), (0, below), (0, right)) + ((0, 0),) * (x.ndim - 3)
    return np.roll(np.pad(x, edges), (-shift_h, -shift_w), axis=(1, 2))

  query, key, value = enter(query), enter(key), enter(value)
  real = enter(np.ones((1, height, width), bool))[0]
  region = swin_regions(*real.shape, (window_h, window_w), (shift_h, shift_w))
  out = np.zeros_like(value)
  for top in range(0, real.shape[0], window_h):
    for left in range(0, real.shape[1], window_w):
      tile = slice(top, top + window_h), slice(left, left + window_w)
      q, k, v = (x[:, *tile] for x in (query, key, value))
      out[:, *tile] = attend_window(
          system, q, k, v, region[tile], real[tile], log_decay
      )
  out = np.roll(out, (shift_h, shift_w), axis=(1, 2))
  return out[:, :height, :width]


def attend_all(query, key, value, log_decay):
  """Full MaSA: all pairs of the map, decayed by their Manhattan distance."""
  batch, height, width = query.shape[:3]
  row, column = (index.ravel() for index in np.indices((height, width)))
  distance = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
  query, key, flat_value = (
      x.reshape(batch, height * width, *x.shape[3:])
      for x in (query, key, value)
  )
  query = rotate_pairs(query, row * width + column)
  key = rotate_pairs(key, row * width + column)
  everything = np.ones(distance.shape, bool)
  out = softmax_line(query, key, flat_value, everything, distance, log_decay)
  return out.reshape(value.shape)


# --------------------------------------------------------------------- model


def attention(tree, x, config, stage, index):
  """Projections, retention, local enhancement, gate, output projection."""
  system = config['system']
  num_heads = config['num_heads'][stage - 1]
  heads = (*x.shape[:3], num_heads, x.shape[3] // num_heads)
  query, key = dense(tree['query'], x), dense(tree['key'], x)
  value = dense(tree['value'], x)
  if system == 'swat':
    value = value * silu(dense(tree['value_gate'], x))  # Eq. 8
  split = query.reshape(heads), key.reshape(heads), value.reshape(heads)

  if 'decay_logit' in tree:
    log_decay = np.log(sigmoid(tree['decay_logit']))
  else:
    rates = fixed_log_decay(num_heads, config['decay_range'][stage - 1])
    log_decay = np.stack([rates, rates])
  if system == 'rmt' and stage in config.get('full_stages', ()):
    out = attend_all(*split, log_decay[0])
  else:
    window = None if system == 'rmt' else config['window_size']
    out = attend_windows(system, *split, log_decay, window, index % 2 == 1)
  out = out.reshape(x.shape)

  local = conv(tree['local'], value, depthwise=True)  # Eq. 6
  if 'local_point' in tree:
    local = dense(tree['local_point'], local)
  out = out + local
  if system == 'retention':
    out = out * sigmoid(dense(tree['gate'], x))  # Eq. 5
  return dense(tree['out'], out)


def feed_forward(tree, x):
  hidden = gelu(dense(tree['up'], x))
  local = conv(tree['position'], hidden, depthwise=True)
  if 'norm' in tree:
    local = layer_norm(tree['norm'], local)
  return dense(tree['down'], hidden + local)


def block(tree, x, config, stage, index):
  x = x + conv(tree['position'], x, depthwise=True)
  branch = layer_norm(tree['attention_norm'], x)
  branch = attention(tree['attention'], branch, config, stage, index)
  x = x + tree.get('attention_scale', 1.0) * branch
  branch = feed_forward(tree['ffn'], layer_norm(tree['ffn_norm'], x))
  return x + tree.get('ffn_scale', 1.0) * branch


def classify(params, statistics, x, head):
  if head == 'norm':
    x = layer_norm(params['norm'], x)
  else:
    x = dense(params['proj'], x)
    x = silu(batch_norm(params['proj_norm'], statistics['proj_norm'], x))
  return dense(params['head'], x.mean((1, 2)))


def nest(variables):
  """`{'a/b': x}` as `{'a': {'b': x}}`, in float64."""
  tree = {}
  for path, array in variables.items():
    *parents, leaf = path.split('/')
    branch = tree
    for name in parents:
      branch = branch.setdefault(name, {})
    branch[leaf] = np.asarray(array, np.float64)
  return tree


def forward(variables, image, config):
  """The whole network on `[b h w 3]`.

  Args:
    variables: Flat: 'params/stem/conv0/kernel', 'batch_stats/stem/norm0/mean'.
    image: Normalised, NHWC.
    config: `system` ('rmt', 'retention', 'swat'), `depths`, `num_heads`,
      `window_size`, `full_stages` (from 1; RMT only), `decay_range`, `head`
      ('norm', 'proj'). What else a model has shows in its parameters.

  Returns:
    'stem', 'stage1'..'stage4' (each before its downsampling) and 'logits'.
  """
  tree = nest(variables)
  params, statistics = tree['params'], tree['batch_stats']
  out = features(params, statistics, image, config)
  out['logits'] = classify(params, statistics, out['stage4'], config['head'])
  return out


def features(params, statistics, image, config):
  """The maps of `forward`, from its two trees."""
  out = {}
  x = np.asarray(image, np.float64)
  for i, stride in enumerate((2, 1, 2, 1)):  # Table 1
    x = conv(params['stem'][f'conv{i}'], x, stride)
    norm = f'norm{i}'
    x = batch_norm(params['stem'][norm], statistics['stem'][norm], x)
    if i < 3:
      x = gelu(x)
  out['stem'] = x

  for stage in range(1, 5):
    for index in range(config['depths'][stage - 1]):
      branch = params[f'stage{stage}'][f'block{index:02}']
      x = block(branch, x, config, stage, index)
    out[f'stage{stage}'] = x
    if stage < 4:
      down = f'down{stage}'
      x = conv(params[down]['conv'], x, stride=2)
      x = batch_norm(params[down]['norm'], statistics[down]['norm'], x)
  return out
