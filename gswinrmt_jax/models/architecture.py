"""The components of a model, one field each."""

import dataclasses
from dataclasses import fields
import functools
import math

from gswinrmt_jax import ops

_LARGEST = 2**20  # bound on numeric fields, far beyond what can be computed
_MOST_BLOCKS = 2**8  # per stage; tracing takes time for each block
_WIDEST = 50  # of learned decays: with 51, float64 may round one to 1


def _field(kind, default, text, *, choices=(), sign=None):
  """Declares a component.

  Args:
    kind: See below.
    default: Gated-SwinRMT-Retention's value.
    text: Its meaning.
    choices: Its values, if they are names; any value otherwise.
    sign: '> 0' or '>= 0', for each number; None for any.
  """
  about = {'kind': kind, 'help': text, 'choices': choices, 'sign': sign}
  return dataclasses.field(default=default, metadata=about)


# What a component is: a size, in which models of one design differ; the design;
# a part of the head, which turns maps into an answer; or a matter of training,
# which changes no function.
_size, _design, _head, _training = (
    functools.partial(_field, kind)
    for kind in ('size', 'design', 'head', 'training')
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
  """The components of a model; the defaults are Gated-SwinRMT-Retention's.

  Tuples have one entry per stage, as many as `widths`, unless stated otherwise.
  Any field can be changed by itself, for ablations of one component. Equation
  numbers are those of the Gated-SwinRMT paper, unless RMT is named.

  The metadata of each field has what `_field` describes; docs/models.md lists
  their `help`.
  """

  widths: tuple[int, ...] = _size(
      (64, 128, 256, 512), 'Channels `C`.', sign='> 0'
  )
  depths: tuple[int, ...] = _size((2, 2, 6, 2), 'Number of blocks.', sign='> 0')
  num_heads: tuple[int, ...] = _size(
      (2, 4, 8, 16),
      'Attention heads `N`, which must divide `C`; `C / N` must be even for '
      'rotary embedding.',
      sign='> 0',
  )
  mlp_ratios: tuple[float, ...] = _size(
      (4.0, 4.0, 4.0, 4.0),
      'Hidden channels of the FFN, divided by `C`.',
      sign='> 0',
  )
  stem: str = _design(
      'conv',
      "'conv' is four 3x3 convolutions, 'patch' a linear map of each patch "
      "(DeiT), 'patch_norm' the same followed by LN (Swin).",
      choices=('conv', 'patch', 'patch_norm'),
  )
  stem_strides: tuple[int, ...] = _design(
      (2, 1, 2, 1),
      "Strides (1 or 2) of the four convolutions of 'conv'; their product is "
      'the stride of the first stage. With (2, 1, 1, 1), an image of 32x32 '
      'pixels has a first map of 16x16.',
  )
  patch_size: int = _size(
      4,
      'Side of a patch in pixels, and stride of the first stage, of the '
      "stems 'patch' and 'patch_norm'.",
      sign='> 0',
  )
  downsample: str = _design(
      'conv',
      "'conv' is a 3x3 convolution of stride 2 and BN, 'merge' is LN and a "
      'linear map of each 2x2 neighbourhood (Swin).',
      choices=('conv', 'merge'),
  )
  head: str = _head(
      'norm',
      "'norm' is LN, average pool, Linear; 'proj' is Linear, BN, SiLU, "
      'average pool, Linear, as in the released RMT.',
      choices=('norm', 'proj'),
  )
  projection: int = _head(
      1024,
      "Output channels of the first Linear of the 'proj' head.",
      sign='> 0',
  )
  dense_head: bool = _head(
      False,
      "Adds a linear head at each position of the last map (before 'proj'), "
      'for token labels; half of its maximum over the map is added to the '
      'logits.',
  )
  feature_norm: bool = _head(
      False,
      'LayerNorm on each map of `features` but not on the input of the next '
      "stage, as in RMT's detection and segmentation backbones; only for "
      'models without a head.',
  )
  drop_path_rate: float = _training(
      0.1,
      'Rate of stochastic depth at the last block; rates increase linearly '
      'from 0 at the first.',
  )
  layer_scale: tuple[float, ...] = _size(
      (1e-2, 1e-2, 1e-2, 1e-2),
      'Initial LayerScale of both branches; 0 omits it.',
  )
  position_conv: bool = _design(
      True, 'Depthwise 3x3 position encoding (CPE) before attention.'
  )
  score_fn: str = _design(
      'softmax',
      "Attention form: 'softmax' (eq. 3), 'sigmoid', divided by the window "
      "size (eq. 7), 'linear', scores times decay (RMT, eq. 3), or 'causal', "
      'the same without later tokens (RMT, eq. 2; all stages full).',
  )
  scaled: bool = _design(True, 'Whether scores are divided by `sqrt(d)`.')
  rotary: str = _design(
      'interleaved',
      "Rotary embedding: 'interleaved' by flattened position (eq. 4), "
      "'split_half' along the axis of each pass (section 3.3), or 'none'.",
      choices=('none', 'interleaved', 'split_half'),
  )
  alibi: str = _design(
      'none',
      "ALiBi bias: `slope * (i - j)` ('signed'), `slope * |i - j|` "
      "('absolute'), or 'none'.",
      choices=('none', 'signed', 'absolute'),
  )
  decay: str = _design(
      'learned',
      "`gamma` per head: 'learned', 'fixed' at RMT's values, or 'none'.",
      choices=('none', 'fixed', 'learned'),
  )
  decay_ranges: tuple[float, ...] = _size(
      (4.0, 4.0, 6.0, 6.0),
      'Range `r` in `gamma_n = 1 - 2 ** (-2 - r n / N)` (RMT, eq. 8).',
      sign='>= 0',
  )
  lce: str = _design(
      'pointwise',
      "Local context enhancement of V: 'depthwise' is a 5x5 convolution, "
      "'pointwise' adds a 1x1 convolution after it (eq. 6), 'none' omits "
      'both.',
      choices=('none', 'depthwise', 'pointwise'),
  )
  head_norm: bool = _design(
      False, 'Normalises the attention output of each head (RetNet).'
  )
  gate: bool = _design(
      True, 'Gates the attention output before the output projection (eq. 5).'
  )
  gate_fn: str = _design(
      'sigmoid',
      "Activation of the gate `x W_g`: 'sigmoid' (G1) or 'swish' (RetNet).",
      choices=('sigmoid', 'swish'),
  )
  swiglu: bool = _design(
      False, 'Gates the values: `V = v1 * SiLU(v2)` (eq. 8).'
  )
  window_size: int = _design(
      14,
      'Nominal window `M` in tokens; 0 attends along whole rows and columns.',
      sign='>= 0',
  )
  shift: bool = _design(
      True, 'Whether odd blocks of a stage shift their windows by `M // 2`.'
  )
  full_stages: tuple[int, ...] = _size(
      (),
      'Stages (counted from 1) that attend over all pairs of tokens at once '
      "instead of along rows, then columns (no windows; not 'sigmoid').",
  )
  ffn_conv: bool = _design(True, 'Whether the FFN has a depthwise convolution.')
  ffn_norm: bool = _size(
      True, 'LayerNorm inside the FFN, after its depthwise convolution.'
  )
  linear_start: str = _training(
      'normal',
      "Initialisation of linear layers: 'normal' draws from N(0, 0.02^2) "
      "with zero bias, as in RMT; 'uniform' draws within `+-1 / "
      "sqrt(fan_in)`, PyTorch's default.",
      choices=('normal', 'uniform'),
  )

  def __post_init__(self):
    """Rejects a model that cannot be built, naming the field.

    Raises:
      ValueError: If a field is out of range or two contradict each other.
    """
    for field in fields(self):
      self._check_field(field)
    if not 0 <= self.drop_path_rate < 1:
      raise ValueError(
          f'drop_path_rate={self.drop_path_rate} must be in [0, 1).'
      )
    if self.ffn_norm and not self.ffn_conv:
      raise ValueError(
          'The LayerNorm of the FFN is after its convolution: set '
          'ffn_norm=False with ffn_conv=False.'
      )
    if self.gate_fn != 'sigmoid' and not self.gate:
      raise ValueError(f'gate_fn={self.gate_fn!r} needs gate=True.')
    if self.decay == 'learned' and max(self.decay_ranges) > _WIDEST:
      raise ValueError(
          f'decay_ranges={self.decay_ranges} exceeds {_WIDEST}: learned decays '
          'would begin at 1, whose logit is infinite.'
      )
    self._check_heads()
    self._check_stem()
    self._check_full_stages()

  @property
  def stages(self) -> int:
    """Number of stages."""
    return len(self.widths)

  @property
  def strides(self) -> tuple[int, ...]:
    """Pixels between neighbouring tokens, per stage."""
    conv = self.stem == 'conv'
    first = math.prod(self.stem_strides) if conv else self.patch_size
    return tuple(first * 2**stage for stage in range(self.stages))

  @property
  def stride(self) -> int:
    """Stride of the last stage: the smallest image size, in pixels."""
    return self.strides[-1]

  def is_full(self, stage: int) -> bool:
    """Returns whether a stage, counted from 0, attends over all pairs."""
    return stage + 1 in self.full_stages  # The field counts from 1.

  def window(self, stage: int) -> int | None:
    """Returns the nominal window of a stage; None if attention spans the map.

    Args:
      stage: Index of the stage, from 0.
    """
    return None if self.is_full(stage) else self.window_size or None

  def is_shifted(self, block: int) -> bool:
    """Returns whether a block, counted from 0, shifts windows by `M // 2`."""
    return self.shift and block % 2 == 1

  def drop_rate(self, block: int) -> float:
    """Returns the stochastic-depth rate of a block, counted from 0.

    The rate is `drop_path_rate i / (L - 1)` for block i of the L blocks of all
    stages (Gated-SwinRMT, section 3.5).
    """
    return self.drop_path_rate * block / max(sum(self.depths) - 1, 1)

  def _check_field(self, field):
    """Rejects unknown names, missing stages, and numbers out of range."""
    name, value, about = field.name, getattr(self, field.name), field.metadata
    choices = about['choices']
    if name == 'score_fn':
      choices = tuple(ops.FORMS | ops.FULL_FORMS)  # includes a user's own
    if choices and value not in choices:
      raise ValueError(f'{name}={value!r} is not one of {choices}.')
    if isinstance(value, str):
      return
    per_stage = isinstance(field.default, tuple) and field.default
    if per_stage and name != 'stem_strides' and len(value) != self.stages:
      raise ValueError(
          f'{name}={value} needs {self.stages} entries, as many as '
          f'widths={self.widths}.'
      )
    most = _MOST_BLOCKS if name == 'depths' else _LARGEST
    for number in value if isinstance(value, tuple) else (value,):
      if not abs(number) <= most:  # or NaN
        raise ValueError(f'{name}={value} exceeds {most:,}.')
      if about['sign'] == '> 0' and number <= 0:
        raise ValueError(f'{name}={value} must be positive.')
      if about['sign'] == '>= 0' and number < 0:
        raise ValueError(f'{name}={value} must not be negative.')

  def _check_heads(self):
    for width, heads in zip(self.widths, self.num_heads, strict=True):
      if width % heads:
        raise ValueError(
            f'{heads} heads do not divide a width of {width} '
            f'(num_heads={self.num_heads}, widths={self.widths}).'
        )
      if self.head_norm and width == heads:
        raise ValueError(
            'head_norm turns a head of one channel into zeros '
            f'(num_heads={self.num_heads}, widths={self.widths}).'
        )
      if self.rotary != 'none' and width // heads % 2:
        raise ValueError(
            f'A head has {width // heads} channels, an odd number, but rotary='
            f'{self.rotary!r} rotates pairs (widths={self.widths}).'
        )

  def _check_stem(self):
    if len(self.stem_strides) != 4 or not {1, 2}.issuperset(self.stem_strides):
      raise ValueError(
          f'stem_strides={self.stem_strides} must be four numbers, 1 or 2.'
      )
    # Changing a field that has no effect is a mistake.
    if self.stem == 'conv' and self.patch_size != _default('patch_size'):
      raise ValueError(
          "stem='conv' has no patches: set stem='patch' or 'patch_norm' with "
          f'patch_size={self.patch_size}, or stem_strides.'
      )
    if self.stem != 'conv' and self.stem_strides != _default('stem_strides'):
      raise ValueError(
          f'stem={self.stem!r} has no convolutions: set patch_size, not '
          f'stem_strides={self.stem_strides}.'
      )

  def _check_full_stages(self):
    every = tuple(range(1, self.stages + 1))
    if not set(self.full_stages) <= set(every):
      raise ValueError(
          f'full_stages={self.full_stages} must be stages from 1 to '
          f'{self.stages}.'
      )
    if self.score_fn not in ops.FORMS and set(self.full_stages) != set(every):
      raise ValueError(
          f'score_fn={self.score_fn!r} attends over all tokens at once: set '
          f'full_stages={every}, not {self.full_stages}.'
      )
    if self.full_stages and (
        self.score_fn not in ops.FULL_FORMS
        or self.alibi != 'none'
        or self.rotary == 'split_half'
    ):
      raise ValueError(
          'Attention over all pairs of tokens takes one of '
          f'{tuple(ops.FULL_FORMS)}, no ALiBi and no per-axis rotation: set '
          f'full_stages=(), if score_fn is one of {tuple(ops.FORMS)}, or '
          f'change score_fn={self.score_fn!r}, alibi={self.alibi!r}, '
          f'rotary={self.rotary!r}.'
      )


def _default(name):
  return getattr(Architecture, name)
