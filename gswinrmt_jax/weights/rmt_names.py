"""Which array of ours is which of the released RMT's, and how it lies.

The released code keeps Linear weights as (out, in), convolutions as OIHW and
LayerScale as (1, 1, 1, C); here they are [in, out], HWIO and [C].
"""

import dataclasses
import re

import numpy as np

# Ours -> theirs; the first that matches the whole name.
_MODULES = (
    (r'stem/conv(\d)', lambda i: f'patch_embed.proj.{3 * int(i)}'),
    (r'stem/norm(\d)', lambda i: f'patch_embed.proj.{3 * int(i) + 1}'),
    (r'down(\d)/conv', lambda i: f'layers.{int(i) - 1}.downsample.reduction'),
    (r'down(\d)/norm', lambda i: f'layers.{int(i) - 1}.downsample.norm'),
    (r'feature_norm(\d)', lambda i: f'extra_norms.{int(i) - 1}'),
    (r'proj_norm', lambda: 'norm'),
    (r'dense_head', lambda: 'aux_head'),
    (r'(norm|proj|head)', str),
)
_IN_BLOCK = {
    'position': 'pos.conv',
    'attention_norm': 'retention_layer_norm',
    'attention/query': 'retention.q_proj',
    'attention/key': 'retention.k_proj',
    'attention/value': 'retention.v_proj',
    'attention/local': 'retention.lepe.conv',
    'attention/out': 'retention.out_proj',
    'ffn_norm': 'final_layer_norm',
    'ffn/up': 'ffn.fc1',
    'ffn/position': 'ffn.dwconv.conv',
    'ffn/norm': 'ffn.ffn_layernorm',
    'ffn/down': 'ffn.fc2',
}
_SCALES = {'attention_scale': 'gamma_1', 'ffn_scale': 'gamma_2'}
_LEAVES = {
    'kernel': 'weight',
    'scale': 'weight',
    'bias': 'bias',
    'mean': 'running_mean',
    'var': 'running_var',
}
_BLOCK = re.compile(r'stage(\d)/block(\d+)/(.+)')


@dataclasses.dataclass(frozen=True)
class Name:
  """The released name of one of our arrays.

  Attributes:
    key: In the state dict.
    is_scale: Whether it is a LayerScale, which has three axes more there.
  """

  key: str
  is_scale: bool = False

  def from_torch(self, array: np.ndarray) -> np.ndarray:
    """Returns their array as ours lies."""
    if self.is_scale:
      return array.reshape(array.shape[-1:])
    if array.ndim == 4:
      return array.transpose(2, 3, 1, 0)
    return array.T  # A vector stays itself.

  def to_torch(self, array: np.ndarray) -> np.ndarray:
    """Returns our array as theirs lies."""
    if self.is_scale:
      return array.reshape(1, 1, 1, -1)
    if array.ndim == 4:
      return array.transpose(3, 2, 0, 1)
    return array.T


def find(path: str) -> Name:
  """Returns the released name of an array.

  Args:
    path: Ours below the collection, such as 'stage1/block00/ffn/up/kernel'.

  Raises:
    ValueError: If the released RMT has nothing of the kind.
  """
  block = _BLOCK.fullmatch(path)
  if block:
    stage, index, rest = block.groups()
    prefix = f'layers.{int(stage) - 1}.blocks.{int(index)}'
    if rest in _SCALES:
      return Name(f'{prefix}.{_SCALES[rest]}', is_scale=True)
    module, _, leaf = rest.rpartition('/')
    if module in _IN_BLOCK and leaf in _LEAVES:
      return Name(f'{prefix}.{_IN_BLOCK[module]}.{_LEAVES[leaf]}')
  else:
    module, _, leaf = path.rpartition('/')
    for pattern, name in _MODULES:
      match = re.fullmatch(pattern, module)
      if match and leaf in _LEAVES:
        return Name(f'{name(*match.groups())}.{_LEAVES[leaf]}')
  raise ValueError(f'The released RMT has no counterpart of {path}.')
