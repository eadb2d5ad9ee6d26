"""RMT and Gated-SwinRMT-Retention in PyTorch, to be timed next to ours.

The code follows PyTorch's rules for speed. Channels are last throughout, which
suits both convolutions and linear layers. One matmul computes all projections.
Fused attention has the decay and the windows in its bias, so that nothing is
rolled, cut or materialised. Autocast is supported. The twin takes the weights
of the Flax model (`load`) and is compared with it before it is timed.
"""

from collections.abc import Mapping
from typing import Any

from flax import traverse_util
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.ops import positions
from gswinrmt_jax.ops.attention import effective_window, window_index

# Finite, since a fused kernel may subtract it from itself.
_MASKED = -1e4


class Twin(nn.Module):
  """The model of `gswinrmt_jax.models.backbone`, reduced to these two kinds."""

  def __init__(self, arch: Architecture, num_classes: int):
    """Builds the layers with PyTorch's initialisation; `load` replaces it.

    Raises:
      ValueError: If the model is not of the two kinds.
    """
    super().__init__()
    supported = (
        arch.score_fn == 'softmax'
        and arch.rotary == 'interleaved'
        and arch.stem == 'conv'
        and arch.downsample == 'conv'
        and arch.lce != 'none'
        and not (arch.swiglu or arch.head_norm or arch.feature_norm)
    )
    if not supported:
      raise ValueError('the twin knows RMT and Gated-SwinRMT-Retention only')
    half, first = arch.widths[0] // 2, arch.widths[0]
    self.stem = nn.Sequential(
        *_conv_norm(3, half, 2),
        nn.GELU(),
        *_conv_norm(half, half, 1),
        nn.GELU(),
        *_conv_norm(half, first, 2),
        nn.GELU(),
        *_conv_norm(first, first, 1),
    )
    total = sum(arch.depths)
    rates = np.linspace(0, arch.drop_path_rate, total).tolist()
    self.stages = nn.ModuleList()
    self.downs = nn.ModuleList()
    for stage, depth in enumerate(arch.depths):
      blocks = [
          Block(arch, stage, bool(arch.shift and i % 2), rates.pop(0))
          for i in range(depth)
      ]
      self.stages.append(nn.Sequential(*blocks))
      if stage:
        widths = arch.widths[stage - 1 : stage + 1]
        self.downs.append(nn.Sequential(*_conv_norm(*widths, 2)))
    last = arch.widths[-1]
    if arch.head == 'proj':
      self.proj = nn.Linear(last, arch.projection)
      self.norm = nn.BatchNorm2d(arch.projection)
      last = arch.projection
    else:
      self.proj, self.norm = None, nn.LayerNorm(last, eps=1e-6)
    self.head = nn.Linear(last, num_classes)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """Classifies normalised images `[b 3 h w]`, channels last in memory."""
    x = self.stem(x)
    for index, stage in enumerate(self.stages):
      if index:
        x = self.downs[index - 1](x)
      x = _to_nchw(stage(_to_nhwc(x)))
    if self.proj is not None:
      x = _to_nchw(self.proj(_to_nhwc(x)))
      x = functional.silu(self.norm(x)).mean((2, 3))
    else:
      x = self.norm(_to_nhwc(x)).mean((1, 2))
    return self.head(x)


@torch.no_grad()
def load(twin: Twin, variables: Mapping[str, Any]) -> None:
  """Copies the weights of the Flax model to the twin.

  Raises:
    ValueError: If an array of the twin gets no value.
  """
  wanted = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
  wanted = {
      name: tensor
      for name, tensor in wanted.items()
      if tensor.requires_grad or name.endswith(('running_mean', 'running_var'))
  }
  arrays = traverse_util.flatten_dict(dict(variables), sep='/')
  parts = {}
  for path, array in arrays.items():
    name, order = _place(path)
    parts.setdefault(name, {})[order] = _as_torch(path, np.asarray(array))
  for name, pieces in parts.items():
    whole = np.concatenate([pieces[order] for order in sorted(pieces)])
    wanted.pop(name).copy_(torch.from_numpy(whole))
  if wanted:
    raise ValueError(f'nothing for {sorted(wanted)}')


_IN_BLOCK = {
    'position': 'position',
    'attention_norm': 'attention_norm',
    'attention/local': 'attention.local',
    'attention/local_point': 'attention.local_point',
    'attention/out': 'attention.out',
    'ffn_norm': 'ffn_norm',
    'ffn/up': 'up',
    'ffn/position': 'ffn_position',
    'ffn/norm': 'ffn_inner_norm',
    'ffn/down': 'down',
}
_PROJECTED = ('query', 'key', 'value', 'gate')
_LEAVES = {
    'kernel': 'weight',
    'scale': 'weight',
    'bias': 'bias',
    'mean': 'running_mean',
    'var': 'running_var',
}


def _place(path):
  """Returns the twin's name of an array, and the index of its part there."""
  _, first, *rest = path.split('/')
  leaf = _LEAVES.get(rest[-1])
  if first == 'stem':
    index = 3 * int(rest[0][-1]) + rest[0].startswith('norm')
    return f'stem.{index}.{leaf}', 0
  if first.startswith('down'):
    index = int(rest[0] == 'norm')
    return f'downs.{int(first[-1]) - 1}.{index}.{leaf}', 0
  if not first.startswith('stage'):
    return f'{first.replace("proj_norm", "norm")}.{leaf}', 0
  block = f'stages.{int(first[-1]) - 1}.{int(rest[0][-2:])}'
  if leaf is None:  # a parameter directly in the block or its attention
    return f'{block}.{".".join(rest[1:])}', 0
  module = '/'.join(rest[1:-1])
  if module.startswith('attention/') and rest[2] in _PROJECTED:
    return f'{block}.attention.project.{leaf}', _PROJECTED.index(rest[2])
  return f'{block}.{_IN_BLOCK[module]}.{leaf}', 0


def _as_torch(path, array):
  if not path.endswith('kernel'):
    return array
  return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


class Block(nn.Module):
  """Position convolution, attention and FFN; feature maps are `[b h w c]`."""

  def __init__(self, arch, stage, shifted, drop_rate):
    super().__init__()
    width = arch.widths[stage]
    hidden = round(arch.mlp_ratios[stage] * width)
    self.position = _depthwise(width, 3)
    self.attention_norm = nn.LayerNorm(width, eps=1e-6)
    self.attention = Attention(arch, stage, shifted)
    self.ffn_norm = nn.LayerNorm(width, eps=1e-6)
    self.up = nn.Linear(width, hidden)
    self.ffn_position = _depthwise(hidden, 3)
    self.ffn_inner_norm = (
        nn.LayerNorm(hidden, eps=1e-6) if arch.ffn_norm else None
    )
    self.down = nn.Linear(hidden, width)
    self.drop_rate = drop_rate
    self.attention_scale = self.ffn_scale = None
    if arch.layer_scale[stage]:
      self.attention_scale = nn.Parameter(torch.empty(width))
      self.ffn_scale = nn.Parameter(torch.empty(width))

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """Applies the block."""
    x = x + _convolved(self.position, x)
    branch = self.attention(self.attention_norm(x))
    x = x + self._scaled(branch, self.attention_scale)
    hidden = functional.gelu(self.up(self.ffn_norm(x)))
    local = _convolved(self.ffn_position, hidden)
    if self.ffn_inner_norm is not None:
      local = self.ffn_inner_norm(local)
    return x + self._scaled(self.down(hidden + local), self.ffn_scale)

  def _scaled(self, branch, scale):
    if scale is not None:
      branch = branch * scale
    if self.training and self.drop_rate:
      keep = 1 - self.drop_rate
      mask = branch.new_empty(len(branch), 1, 1, 1).bernoulli_(keep)
      branch = branch * mask.div_(keep)
    return branch


class Attention(nn.Module):
  """Both passes, or all pairs at once, with PyTorch's fused attention."""

  def __init__(self, arch, stage, shifted):
    super().__init__()
    width, heads = arch.widths[stage], arch.num_heads[stage]
    self.heads, self.gated = heads, arch.gate
    self.full = arch.is_full(stage)
    self.window = arch.window(stage)
    self.shift = (self.window or 0) // 2 if shifted else 0
    self.project = nn.Linear(width, (4 if arch.gate else 3) * width)
    self.local = _depthwise(width, 5)
    self.local_point = (
        nn.Linear(width, width) if arch.lce == 'pointwise' else None
    )
    self.out = nn.Linear(width, width)
    rates = positions.decay_rates(heads, arch.decay_ranges[stage])
    logits = torch.tensor(np.log(rates / (1 - rates)), dtype=torch.float32)
    logits = logits.repeat(1 if self.full else 2, 1)
    self.decay_logit = nn.Parameter(logits, arch.decay == 'learned')
    self._tables = {}

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """Returns the residual branch."""
    batch, height, width, channels = x.shape
    maps = self.project(x).chunk(4 if self.gated else 3, dim=-1)
    value = maps[2]
    turn, distances = self._of_size(height, width, x.device)
    shape = (batch, height, width, self.heads, channels // self.heads)
    query, key = (_rotated(m.reshape(shape), turn) for m in maps[:2])
    out = self._mixed(query, key, value.reshape(shape), distances)
    local = _convolved(self.local, value)
    if self.local_point is not None:
      local = self.local_point(local)
    out = out.reshape(x.shape) + local
    return self.out(out * maps[3].sigmoid() if self.gated else out)

  def _mixed(self, query, key, value, distances):
    log_decay = functional.logsigmoid(self.decay_logit)
    # The bias of each pass: decay, and the mask between windows.
    biases = [
        (log_gamma[:, None, None] * distance + mask).to(value.dtype)
        for log_gamma, (distance, mask) in zip(
            log_decay, distances, strict=True
        )
    ]
    if self.full:
      tokens = [m.flatten(1, 2) for m in (query, key, value)]
      return _attend(*tokens, biases[0])
    value = _attend(query, key, value, biases[0])
    turned = [m.transpose(1, 2) for m in (query, key, value)]
    return _attend(*turned, biases[1]).transpose(1, 2)

  def _of_size(self, height, width, device):
    """Returns the rotation table, and distances and mask of each pass."""
    name = height, width
    if name not in self._tables:
      stride, _ = effective_window(width, self.window, 0)
      row, column = np.arange(height)[:, None], np.arange(width)[None]
      depth = self.project.in_features // self.heads
      angle = (row * stride + column)[..., None] * (
          positions.interleaved_frequencies(depth)
      )
      turn = torch.from_numpy(np.exp(1j * angle))[:, :, None]
      if self.full:
        pairs = [(np.asarray(positions.manhattan(height, width)), None)]
      else:
        pairs = [
            (
                np.abs(positions.offsets(extent)),
                _apart(extent, self.window, self.shift),
            )
            for extent in (width, height)
        ]
      self._tables[name] = (
          turn.to(device, torch.complex64),
          [_on_device(*pair, device) for pair in pairs],
      )
    return self._tables[name]


def _apart(extent, window, shift):
  """Returns which pairs `[i, j]` of a line are in different windows."""
  window, shift = effective_window(extent, window, shift)
  index = window_index(np.arange(extent), window, shift)
  return index[:, None] != index[None]


def _on_device(distance, apart, device):
  bias = np.zeros(distance.shape)
  if apart is not None:
    bias = apart * _MASKED
  return tuple(
      torch.tensor(array, dtype=torch.float32, device=device)
      for array in (distance, bias)
  )


def _attend(query, key, value, bias):
  """Returns `softmax(q k / sqrt(d) + bias) v` over `[... i n d]`."""
  leading = query.shape[:-3]
  query, key, value = (
      m.reshape(-1, *m.shape[-3:]).transpose(1, 2) for m in (query, key, value)
  )
  out = functional.scaled_dot_product_attention(
      query, key, value, attn_mask=bias[None]
  )
  return out.transpose(1, 2).unflatten(0, leading)


def _rotated(x, turn):
  """Rotates the channel pairs (2m, 2m + 1), in float32 as in ours."""
  pairs = x.float().unflatten(-1, (-1, 2))
  if torch.compiler.is_compiling():  # it fuses this, but not complex numbers
    cos, sin = turn.real, turn.imag
    even, odd = pairs.unbind(-1)
    turned = (even * cos - odd * sin, even * sin + odd * cos)
    turned = torch.stack(turned, -1)
  else:
    turned = torch.view_as_real(torch.view_as_complex(pairs) * turn)
  return turned.flatten(-2).to(x.dtype)


def _conv_norm(inputs, outputs, stride):
  return nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs)


def _depthwise(channels, size):
  return nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels)


def _convolved(conv, x):
  return _to_nhwc(conv(_to_nchw(x)))


def _to_nchw(x):
  return x.permute(0, 3, 1, 2)


def _to_nhwc(x):
  return x.permute(0, 2, 3, 1)
