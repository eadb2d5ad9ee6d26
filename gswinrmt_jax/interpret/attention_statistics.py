"""Measures attention and gates of a trained model over a data set.

The Gated-SwinRMT paper argues that a softmax inside a small window must attend
to something, even if no token there is informative, and that its gates (eq. 5
and 8) undo that. This module measures the observable side of that claim. Tokens
are grouped by the variance of the image under their window: ten deciles, from
flat to informative, and one more group for windows that the border or the shift
cuts smaller. For each stage and group it gives:

  entropy   entropy of the rows of A_w and A_h, normalised to a sum of 1,
            divided by the logarithm of the number of keys; 1 is a uniform row
  row_sum   sum of such a row before normalisation; 1 for a softmax
  gate      mean of G1 = sigmoid(x W_g), and the share of it below 0.1
  passed    sum |O * G1| / sum |O|: the share of the output, LCE included, that
            the gate passes
  swiglu    mean of |v1 SiLU(v2)|, and the share below a tenth of the mean of
            the block over the batch

For each stage it also gives gamma, the mean over passes and blocks, and the
reach -1 / log(gamma) of that mean in tokens, of a new model and now; and the
effective rank of each head's W_V W_O, and of W_V diag(g) W_O with the gate g of
single tokens. The effective rank is the exponential of the entropy of the
singular values (Roy and Vetterli, 2007).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt8
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.attention import Attention
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.models.layers import Dense
from gswinrmt_jax.ops import positions
from gswinrmt_jax.ops.attention import effective_window, window_index

DECILES = 10
GROUPS = DECILES + 1  # The last group: windows cut smaller.

_CLOSED = 0.1  # A gate below it counts as closed.
_SAMPLED = 64  # Tokens per block whose gates enter the effective rank.


def check(arch: Architecture) -> None:
  """Refuses a model whose attention weights or gates may be negative.

  Raises:
    UserError: If its attention form gives a negative score a negative weight,
      or its gate is not a sigmoid.
  """
  if arch.gate_fn != 'sigmoid':
    raise UserError(
        f"gate_fn='{arch.gate_fn}': analyze takes sigmoid gates, which are "
        'between 0 and 1'
    )
  full = {name: weigh for name, (weigh, _) in ops.FULL_FORMS.items()}
  weigh = (full | ops.FORMS)[arch.score_fn]
  if (weigh(jnp.linspace(-3, 3, 16).reshape(4, 4), None, None, 4) < 0).any():
    raise UserError(
        f"score_fn='{arch.score_fn}': analyze takes weights that are never "
        "negative and so have an entropy, such as 'softmax' and 'sigmoid'"
    )


def analyze(
    model: Backbone,
    variables: Mapping[str, Any],
    read: Callable[[], Iterable[UInt8[np.ndarray, 'b h w 3']]],
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
  """Measures a model over images.

  Args:
    model: The model, computing in float32.
    variables: Its 'params' and 'batch_stats'.
    read: Called twice, returns batches of images of one size, pixels from 0 to
      255.
    size: Height and width of the images.
    mean: Mean of each channel of pixels / 255.
    std: Standard deviation of each channel.
    progress: Called with the number of finished batches.

  Returns:
    For each stage, a dictionary of JSON values: 'tokens', 'window' and the
    quantities listed in the module's docstring. A quantity that depends on the
    group is a list of 11 values, for the deciles and the windows cut smaller,
    with None for a group without tokens. Entropies and row sums have one such
    list per pass and head. An infinite reach is None.

  Raises:
    UserError: As in `check`.
  """
  model, arch = model.clone(remat='none'), model.arch
  check(arch)
  stages = [_Stage(arch, stage, size) for stage in range(arch.stages)]
  for images in read():
    for stage in stages:
      stage.see_images(images)
  for stage in stages:
    stage.find_deciles()

  gates = {}  # of the attention that is running

  def record(next_function, args, kwargs, context):
    module, parent = context.module, context.module.parent
    if isinstance(module, Attention) and context.method_name == 'attend':
      stage = stages[module.stage]
      query, key, value, *rest = args
      if arch.swiglu:
        stage.see_value(module.shifted, value)
      for name, weights in module.weights(query, key, *rest).items():
        stage.see(module.shifted, name, weights)
    out = next_function(*args, **kwargs)
    if isinstance(module, Dense) and isinstance(parent, Attention):
      stage = stages[parent.stage]
      if module.name == 'value_gate':
        stage.sample(parent.path[1], module.name, jax.nn.silu(out))
      elif module.name == 'gate':
        gates[parent.path] = jax.nn.sigmoid(out)
      elif module.name == 'out' and arch.gate:
        gate = gates.pop(parent.path)
        stage.see_gate(parent.shifted, gate, args[0])
        stage.sample(parent.path[1], module.name, gate)
    return out

  for done, images in enumerate(read(), start=1):
    for stage in stages:
      stage.group(images)
    pixels = augment_lib.normalize(jnp.asarray(images), mean=mean, std=std)
    # Without jit, so that every intermediate value can be read.
    # On a GPU, float32 would mean TF32.
    with (
        nn.intercept_methods(record),
        jax.default_matmul_precision('highest'),
    ):
      model.apply(variables, pixels, train=False)
    progress(done)
  return [stage.result(variables['params']) for stage in stages]


def effective_rank(matrix: Float[np.ndarray, 'i j']) -> float:
  """Returns `exp(-sum p log p)` with `p` the singular values over their sum."""
  values = np.linalg.svd(matrix, compute_uv=False)
  share = values / max(values.sum(), np.finfo(float).tiny)
  return float(np.exp(-np.sum(share * np.log(np.maximum(share, 1e-30)))))


def window_variance(
    images: UInt8[np.ndarray, 'b h w 3'],
    blocks: tuple[Int[np.ndarray, ' y'], Int[np.ndarray, ' x']],
    stride: int,
) -> Float[np.ndarray, 'b y x']:
  """Returns the variance of the grey image under the window of each token.

  Args:
    images: Pixels from 0 to 255; grey is the mean of the channels over 255.
    blocks: Window number of each row, and of each column, of tokens.
    stride: Pixels from one token to the next.
  """
  # Sums of integers are exact: a flat window has variance 0.
  grey = images.sum(-1, dtype=np.float64)
  # [window, pixel], 1 where the pixel is in the window.
  inside = [
      np.arange(block[-1] + 1)[:, None] == block.repeat(stride)[:extent]
      for block, extent in zip(blocks, grey.shape[1:], strict=True)
  ]
  down, across = (table.astype(np.float64) for table in inside)
  area = down.sum(1)[:, None] * across.sum(1)
  first, second = (down @ x @ across.T for x in (grey, grey**2))
  variance = (area * second - first**2) / (area * 3 * 255) ** 2
  return variance[:, blocks[0]][:, :, blocks[1]]


class _Stage:
  """Accumulates sums over all images and blocks of one stage."""

  def __init__(self, arch: Architecture, stage: int, size: tuple[int, int]):
    self._arch, self._index = arch, stage
    self._heads = arch.num_heads[stage]
    self._stride = arch.strides[stage]
    self._tokens = tuple(-(-extent // self._stride) for extent in size)
    self._window = arch.window(stage)
    self._shifts = {
        arch.is_shifted(block) for block in range(arch.depths[stage])
    }
    self._variances: list[np.ndarray] = []  # of the tokens in whole windows
    self._edges = np.zeros(DECILES - 1)
    self._groups: dict[bool, np.ndarray] = {}  # one-hot, [token, group]
    self._sums: dict[str, list[np.ndarray]] = {}
    self._gates: dict[str, dict[str, np.ndarray]] = {}  # by block, layer

  def see_images(self, images):
    """Adds the variances under all whole windows of a batch."""
    for shifted in self._shifts:
      variance = window_variance(images, self._blocks(shifted), self._stride)
      self._variances.append(variance[:, ~self._cut(shifted)].ravel())

  def find_deciles(self):
    """Sets the variances that separate the deciles of all whole windows."""
    every = np.concatenate(self._variances)
    self._variances.clear()
    if every.size:
      self._edges = np.quantile(every, np.arange(1, DECILES) / DECILES)

  def group(self, images):
    """Assigns the tokens of a batch to groups."""
    for shifted in self._shifts:
      variance = window_variance(images, self._blocks(shifted), self._stride)
      # A decile includes its upper bound: flat windows are in the first.
      group = np.digitize(variance, self._edges, right=True)
      group[:, self._cut(shifted)] = DECILES
      self._groups[shifted] = np.eye(GROUPS)[group.ravel()]

  def see(self, shifted, name, weights):
    """Adds the attention weights of a pass; see `Attention.weights`."""
    order = {
        'width': (0, 1, 3, 2),  # b row n column
        'height': (0, 3, 1, 2),  # b column n row
        'pairs': (0, 2, 1),  # b n token
    }[name]

    def by_token(rows):
      return rows.transpose(order).reshape(-1, self._heads)

    weights = np.asarray(weights, np.float64)
    keys = np.array(weights.shape[-1])
    if name != 'pairs':  # The tokens of the window along the pass.
      block = self._blocks(shifted)[1 if name == 'width' else 0]
      keys = np.bincount(block)[block]
    row_sum = weights.sum(-1)
    share = weights / np.maximum(row_sum, 1e-30)[..., None]
    nats = -(share * np.log(np.maximum(share, 1e-30))).sum(-1)
    # A row of one key has no choice, and one without weights chooses nothing:
    # their entropies do not count.
    choice = np.broadcast_to(keys > 1, nats.shape) & (row_sum > 0)
    entropy = choice * nats / np.log(np.maximum(keys, 2))
    self._add(f'entropy {name}', shifted, by_token(entropy), by_token(choice))
    self._add(f'row_sum {name}', shifted, by_token(row_sum))

  def see_gate(self, shifted, gate, passed):
    """Adds the gate's values and the gated `O`, `[b h w c]` each."""
    gate, passed = (np.asarray(x, np.float64) for x in (gate, passed))
    flat = gate.reshape(-1, gate.shape[-1])
    self._add('gate mean', shifted, flat)
    self._add('gate closed', shifted, flat < _CLOSED)
    passed = np.abs(passed.reshape(flat.shape))
    whole = passed / np.maximum(np.abs(flat), 1e-30)
    self._add('passed', shifted, passed.sum(1)[:, None], whole.sum(1)[:, None])

  def see_value(self, shifted, value):
    """Adds `v1 SiLU(v2)` of eq. 8, `[b h w c]`."""
    value = np.abs(np.asarray(value, np.float64))
    flat = value.reshape(-1, value.shape[-1])
    self._add('swiglu mean', shifted, flat)
    self._add('swiglu closed', shifted, flat < _CLOSED * flat.mean())

  def sample(self, block, layer, gate):
    """Stores a gate of some tokens of a block, from the first batch."""
    flat = np.asarray(gate, np.float64).reshape(-1, gate.shape[-1])
    step = max(1, len(flat) // _SAMPLED)
    gates = self._gates.setdefault(block, {})
    gates.setdefault(layer, flat[::step][:_SAMPLED])

  def result(self, params) -> dict[str, Any]:
    """Returns the quantities as JSON values."""
    found: dict[str, Any] = {
        'stride': self._stride,
        'tokens': list(self._tokens),
        'window': self._window,
        'entropy': {},
        'row_sum': {},
    }
    for name, (total, count) in self._sums.items():
      table = np.where(count > 0, total / np.maximum(count, 1e-30), np.nan)
      kind, _, part = name.partition(' ')
      if kind in ('entropy', 'row_sum'):
        found[kind][part] = [_json(row) for row in table.T]
      elif part:
        found.setdefault(kind, {})[part] = _json(table.mean(1))
      else:
        found[kind] = _json(table[:, 0])
    blocks = params[f'stage{self._index + 1}']
    return found | {'decay': self._decay(blocks), 'rank': self._rank(blocks)}

  def _blocks(self, shifted):
    """Returns the window number of each row, and of each column, of tokens."""
    numbers = []
    for extent in self._tokens:
      shift = (self._window or 0) // 2 if shifted else 0
      window, shift = effective_window(extent, self._window, shift)
      block = window_index(np.arange(extent), window, shift)
      numbers.append(block - block[0])
    return tuple(numbers)

  def _cut(self, shifted):
    """Returns a mask `[y x]` of the tokens in windows that are cut smaller."""
    sizes = []
    for block, extent in zip(self._blocks(shifted), self._tokens, strict=True):
      whole, _ = effective_window(extent, self._window, 0)
      sizes.append(np.bincount(block)[block] < whole)
    return sizes[0][:, None] | sizes[1]

  def _add(self, name, shifted, values, weights=None):
    """Adds values and weights `[token, k]` to their sums `[group, k]`.

    The mean is `sum(values) / sum(weights)`; by default, weights are 1.
    """
    group = self._groups[shifted]
    if weights is None:
      weights = np.ones_like(values, np.float64)
    added = group.T @ values, group.T @ weights
    old = self._sums.get(name, (0, 0))
    self._sums[name] = [a + b for a, b in zip(old, added, strict=True)]

  def _decay(self, blocks):
    """Returns gamma and reach by head, the mean of passes and blocks."""
    arch = self._arch
    if arch.decay == 'none':
      return None
    start = positions.decay_rates(self._heads, arch.decay_ranges[self._index])
    now = start
    if arch.decay == 'learned':
      logits = [block['attention']['decay_logit'] for block in blocks.values()]
      now = (1 / (1 + np.exp(-np.asarray(logits, np.float64)))).mean((0, 1))
    with np.errstate(divide='ignore'):  # the reach of gamma = 1 is infinite
      return {
          when: {'gamma': _json(gamma), 'reach': _json(-1 / np.log(gamma))}
          for when, gamma in (('start', start), ('now', now))
      }

  def _rank(self, blocks):
    """Returns mean effective ranks over heads and blocks, and their bound."""
    without, gated = [], []
    for name, block in blocks.items():
      # With SwiGLU and G1, a token's gate is their product.
      gates = list(self._gates.get(name, {}).values())
      w_v, w_o = (
          np.asarray(block['attention'][each]['kernel'], np.float64)
          for each in ('value', 'out')
      )
      for head in np.split(np.arange(len(w_v)), self._heads):
        # Small matrices whose product has the same singular values.
        right = np.linalg.qr(w_v[:, head], mode='r')
        left = np.linalg.qr(w_o[head].T, mode='r')
        without.append(effective_rank(right @ left.T))
        gated += [
            effective_rank(right * gate[head] @ left.T)
            for gate in (math.prod(gates) if gates else ())
        ]
    return {
        'most': len(w_v) // self._heads,
        'plain': float(np.mean(without)),
        'gated': float(np.mean(gated)) if gated else None,
    }


def _json(values: np.ndarray) -> list[float | None]:
  """Returns the values as numbers; those that JSON lacks become None."""
  return [float(value) if math.isfinite(value) else None for value in values]
