r"""The models in float64 NumPy, written independently from the papers.

`forward` computes RMT, also in the skeletons of DeiT and Swin,
Gated-SwinRMT-Retention and Gated-SwinRMT-SWAT from the image to the logits in
evaluation mode. It shares no line with the package and, where there is a
choice, does the opposite: shifted windows follow Swin (pad, roll, cut, mask,
undo); patches, windows, rows and columns are loops; nothing is fused. Its own
tests are in `oracle_test.py`.

Axis letters: b batch, h w rows and columns, c channels, n heads, d channels per
head, l positions on a line. A capital letter is the key side: `l` indexes
queries, `L` keys.
"""

import itertools
import math

import numpy as np
from scipy import special

# ------------------------------------------------------------------- layers


def sigmoid(x):
  return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x):
  return x * sigmoid(x)


def gelu(x):
  """Computes the exact GELU, x times the normal distribution function."""
  return 0.5 * x * (1.0 + special.erf(x / math.sqrt(2.0)))


def dense(tree, x):
  return x @ tree['kernel'] + tree['bias']


def layer_norm(tree, x):
  mean = x.mean(-1, keepdims=True)
  variance = ((x - mean) ** 2).mean(-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + 1e-6) * tree['scale'] + tree['bias']


def batch_norm(tree, statistics, x):
  """Normalises with the running statistics, as in evaluation mode."""
  x = (x - statistics['mean']) / np.sqrt(statistics['var'] + 1e-5)
  return x * tree['scale'] + tree['bias']


def conv(tree, x, stride=1, depthwise=False):
  """Applies a convolution, padded by half the odd kernel on every side.

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


def pad_to_multiples(x, side):
  """Pads with zeros on the right and below."""
  below, right = -x.shape[1] % side, -x.shape[2] % side
  return np.pad(x, ((0, 0), (0, below), (0, right), (0, 0)))


def embed_patches(tree, x):
  """Maps each patch linearly, as in DeiT; layer norm follows in Swin."""
  kernel, bias = tree['conv']['kernel'], tree['conv']['bias']
  side = len(kernel)
  x = pad_to_multiples(x, side)
  height, width = x.shape[1] // side, x.shape[2] // side
  out = np.zeros((len(x), height, width, len(bias)))
  for i, j in np.ndindex(height, width):
    patch = x[:, side * i : side * (i + 1), side * j : side * (j + 1)]
    out[:, i, j] = np.einsum('buvc,uvcf->bf', patch, kernel)
  out += bias
  return layer_norm(tree['norm'], out) if 'norm' in tree else out


def merge_patches(tree, x):
  """Maps each 2x2 neighbours linearly, as in Swin, column by column."""
  x = pad_to_multiples(x, 2)
  corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
  x = layer_norm(tree['norm'], np.concatenate(corners, -1))
  return x @ tree['linear']['kernel']


# ---------------------------------------------------------- decay, positions


def fixed_log_decay(num_heads, decay_range):
  """Returns log(gamma_n), gamma_n = 1 - 2^(-2 - r n / N).

  This is RMT Eq. 8 with a = 2 and r = b - a.
  """
  exponent = -2.0 - decay_range * np.arange(num_heads) / num_heads
  return np.log(1.0 - 2.0**exponent)


def alibi_slopes(num_heads):
  """Returns -1/2, +1/2, -1/4, +1/4, ...; an unpaired last head gets 0."""
  slopes = np.zeros(num_heads)
  for k in range(1, num_heads // 2 + 1):
    slopes[2 * k - 2] = -(2.0**-k)
    slopes[2 * k - 1] = 2.0**-k
  return slopes


def rotate_pairs(x, position):
  """Applies theta-shift RoPE (Eq. 4) to channel pairs 2m, 2m + 1.

  The d/2 frequencies are RMT's: 10000^-t, with t from 0 to 1 *inclusive*.

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
  """Applies standard RoPE to channels j and j + d/2.

  The angle is position 10000^(-2j/d).
  """
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
  """Computes softmax over the allowed keys; zeros for a query without any."""
  weights = np.zeros_like(scores)
  for query, keys in enumerate(allowed):
    if keys.any():
      row = scores[..., query, keys]
      row = np.exp(row - row.max(-1, keepdims=True))
      weights[..., query, keys] = row / row.sum(-1, keepdims=True)
  return weights


def softmax_line(query, key, value, allowed, distance, log_decay):
  """Computes softmax(q k / sqrt(d) + distance log gamma) v (Eq. 3).

  Query, key and value are `[b l n d]`.
  """
  scores = np.einsum('blnd,bLnd->bnlL', query, key) / math.sqrt(query.shape[-1])
  scores = scores + distance * log_decay[:, None, None]
  return np.einsum('bnlL,bLnd->blnd', masked_softmax(scores, allowed), value)


def sigmoid_line(query, key, value, allowed, log_decay):
  """Computes sigmoid(q k + slope (i - j)) / w_s gamma^|i - j| v (Eq. 7).

  Query, key and value are `[b l n d]`; the window size w_s is the length of the
  line.
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
  """Returns the window on one axis (Eq. 9), and its shift.

  A `window` of None means the whole axis. A single window is never shifted.
  """
  if window is None or window >= extent:
    return extent, 0
  return window, window // 2 if shifted else 0


def swin_regions(height, width, windows, shifts):
  """Returns Swin's region ids `[h w]` of a padded map, in rolled coordinates.

  Each axis has three slices: all but the last window, the last window up to the
  seam, and the part after the seam. An unshifted axis has one.
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
  """Attends over each row, then each column, of one window `[b h w n d]`.

  `region` and `real` are `[h w]`. Tokens of different regions do not see each
  other, and no token sees a padded one. `log_decay` is `[2 n]`, width first.
  """
  height, width = region.shape
  row, column = np.indices(region.shape)
  if system != 'swat':
    query = rotate_pairs(query, row * width + column)
    key = rotate_pairs(key, row * width + column)

  def attend(line, value, rates):
    """Attends within `line`, the index of a row or column of the window."""
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
  """Attends as Swin does: pad, roll, cut, mask, attend, roll back, crop."""
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
  """Computes full MaSA: all pairs, decayed by their Manhattan distance."""
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
  """Applies projections, retention, any local enhancement, gate and output."""
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

  if 'local' in tree:
    local = conv(tree['local'], value, depthwise=True)  # Eq. 6
    if 'local_point' in tree:
      local = dense(tree['local_point'], local)
    out = out + local
  if system == 'retention':
    out = out * sigmoid(dense(tree['gate'], x))  # Eq. 5
  return dense(tree['out'], out)


def feed_forward(tree, x):
  hidden = gelu(dense(tree['up'], x))
  if 'position' in tree:
    local = conv(tree['position'], hidden, depthwise=True)
    if 'norm' in tree:
      local = layer_norm(tree['norm'], local)
    hidden = hidden + local
  return dense(tree['down'], hidden)


def block(tree, x, config, stage, index):
  if 'position' in tree:
    x = x + conv(tree['position'], x, depthwise=True)
  branch = layer_norm(tree['attention_norm'], x)
  branch = attention(tree['attention'], branch, config, stage, index)
  x = x + tree.get('attention_scale', 1.0) * branch
  branch = feed_forward(tree['ffn'], layer_norm(tree['ffn_norm'], x))
  return x + tree.get('ffn_scale', 1.0) * branch


def convolutional_stem(tree, statistics, x):
  for i, stride in enumerate((2, 1, 2, 1)):  # Table 1
    x = conv(tree[f'conv{i}'], x, stride)
    x = batch_norm(tree[f'norm{i}'], statistics[f'norm{i}'], x)
    if i < 3:
      x = gelu(x)
  return x


def classify(params, statistics, x, head):
  if head == 'norm':
    x = layer_norm(params['norm'], x)
  else:
    x = dense(params['proj'], x)
    x = silu(batch_norm(params['proj_norm'], statistics['proj_norm'], x))
  return dense(params['head'], x.mean((1, 2)))


def nest(variables):
  """Turns `{'a/b': x}` into `{'a': {'b': x}}`, in float64."""
  tree = {}
  for path, array in variables.items():
    *parents, leaf = path.split('/')
    branch = tree
    for name in parents:
      branch = branch.setdefault(name, {})
    branch[leaf] = np.asarray(array, np.float64)
  return tree


def forward(variables, image, config):
  """Computes the whole network.

  Args:
    variables: Flat: 'params/stem/conv0/kernel', 'batch_stats/stem/norm0/mean'.
    image: Normalised images `[b h w 3]`.
    config: `system` ('rmt', 'retention', 'swat'), `depths`, `num_heads`,
      `window_size`, `full_stages` (from 1; RMT only), `decay_range`, `head`
      ('norm', 'proj'). Everything else follows from the parameters.

  Returns:
    A dict of 'stem', 'stage1' to the last (before downsampling) and 'logits'.
  """
  tree = nest(variables)
  params, statistics = tree['params'], tree.get('batch_stats')
  out = features(params, statistics, image, config)
  last = out[f'stage{len(config["depths"])}']
  out['logits'] = classify(params, statistics, last, config['head'])
  return out


def features(params, statistics, image, config):
  """Returns the feature maps of `forward`, given nested variables."""
  x = np.asarray(image, np.float64)
  if 'conv' in params['stem']:
    x = embed_patches(params['stem'], x)
  else:
    x = convolutional_stem(params['stem'], statistics['stem'], x)
  out = {'stem': x}

  for stage, depth in enumerate(config['depths'], start=1):
    for index in range(depth):
      branch = params[f'stage{stage}'][f'block{index:02}']
      x = block(branch, x, config, stage, index)
    out[f'stage{stage}'] = x
    if stage < len(config['depths']):
      down = f'down{stage}'
      if 'linear' in params[down]:
        x = merge_patches(params[down], x)
      else:
        x = conv(params[down]['conv'], x, stride=2)
        x = batch_norm(params[down]['norm'], statistics[down]['norm'], x)
  return out
