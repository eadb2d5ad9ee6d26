"""The hierarchical model: stem, stages, downsampling, head."""

import functools

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gswinrmt_jax.models import layers, stem
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.block import Block
from gswinrmt_jax.ops import image_pairs, padding, wide, wide_dtype

# Weight of the dense logits relative to the class logits, as in RMT's release.
_DENSE_SHARE = 0.5

# What the forward pass saves of a block; the backward pass recomputes the rest.
REMAT = {
    'none': None,
    'elementwise': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'blocks': jax.checkpoint_policies.nothing_saveable,
}


class Stage(nn.Module):
  """The blocks of one stage; odd ones, counted from 0, shift their windows.

  Attributes:
    arch: The components.
    stage: Index of the stage, from 0.
    dtype: Computation dtype.
    remat: A name in `REMAT`.
  """

  arch: Architecture
  stage: int
  dtype: Dtype
  remat: str = 'none'

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b h w c']:
    """Applies the blocks, with stochastic depth in training."""
    arch, policy = self.arch, REMAT[self.remat]
    block = Block if policy is None else nn.remat(Block, policy=policy)
    first = sum(arch.depths[: self.stage])
    for index in range(arch.depths[self.stage]):
      x = block(
          arch,
          self.stage,
          shifted=arch.is_shifted(index),
          dtype=self.dtype,
          drop_rate=arch.drop_rate(first + index) if train else 0.0,
          name=f'block{index:02d}',
      )(x, extents)
    return x


class Downsample(nn.Module):
  """Halves height and width between stages, rounded up.

  'conv' is a 3x3 convolution of stride 2 and BN (RMT; Gated-SwinRMT, section
  3.5). 'merge' is Swin's patch merging, LN and a linear map of each 2x2
  neighbourhood; an odd size is zero-padded on the right or at the bottom:

      y[i, j] = LN([x[2i, 2j], x[2i+1, 2j], x[2i, 2j+1], x[2i+1, 2j+1]]) W

  Attributes:
    features: Channels of the next stage.
    kind: 'conv' or 'merge'.
    dtype: Computation dtype.
    start: Initialisation of the linear layer of 'merge', see `Dense`.
  """

  features: int
  kind: str
  dtype: Dtype
  start: str = 'normal'

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b H W f']:
    """Returns the input of the next stage; `train` is for BN."""
    if self.kind == 'conv':
      x = layers.Conv(self.features, 3, self.dtype, stride=2, name='conv')(
          x, extents
      )
      extents = padding.strided(extents, 2)
      return layers.BatchNorm(name='norm')(x, extents, train=train)
    # Swin's weights order the channels of the neighbours down, then right.
    x = layers.cut_patches(padding.fill(x, extents), 2).swapaxes(3, 4)
    x = layers.LayerNorm(name='norm')(x.reshape(*x.shape[:3], -1))
    linear = layers.Dense(
        self.features,
        self.dtype,
        use_bias=False,
        start=self.start,
        name='linear',
    )
    return linear(x)


class Backbone(nn.Module):
  """RMT or Gated-SwinRMT, a classifier or backbone; built by `create_model`.

  Attributes:
    arch: The components.
    num_classes: Number of logits; 0 omits the heads.
    dtype: Computation dtype. Parameters are float32, logits at least float32.
    remat: What the backward pass recomputes, a name in `REMAT`: 'none';
      'elementwise', all but the outputs of linear layers; or 'blocks', all but
      the input of each block. Parameters are the same.
  """

  arch: Architecture
  num_classes: int
  dtype: Dtype = jnp.float32
  remat: str = 'none'

  def setup(self):
    """Creates the submodules; checkpoints have their attribute names."""
    arch = self.arch
    if arch.stem == 'conv':
      self.stem = stem.Stem(arch.widths[0], self.dtype, arch.stem_strides)
    else:
      self.stem = stem.PatchEmbedding(
          arch.widths[0], arch.patch_size, arch.stem == 'patch_norm', self.dtype
      )
    for stage in range(arch.stages):
      blocks = Stage(arch, stage, self.dtype, self.remat)
      setattr(self, f'stage{stage + 1}', blocks)
    for index, width in enumerate(arch.widths[1:], start=1):
      down = Downsample(width, arch.downsample, self.dtype, arch.linear_start)
      setattr(self, f'down{index}', down)
    if arch.feature_norm:
      for stage in range(arch.stages):
        norm_layer = layers.LayerNorm(epsilon=1e-5)  # as released
        setattr(self, f'feature_norm{stage + 1}', norm_layer)
    if not self.num_classes:
      return
    linear = functools.partial(layers.Dense, start=arch.linear_start)
    if arch.head == 'proj':
      self.proj = linear(arch.projection, self.dtype)
      self.proj_norm = layers.BatchNorm()
    else:
      self.norm = layers.LayerNorm()
    self.head = linear(self.num_classes, wide_dtype(self.dtype))
    if arch.dense_head:
      self.dense_head = linear(self.num_classes, wide_dtype(self.dtype))

  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      *,
      train: bool,
      extents: padding.Extents = None,
  ) -> Float[Array, 'b k']:
    """Classifies normalised images.

    With a dense head, in training and in evaluation,

        logits = class logits + 1/2 max_hw(dense logits)

    Args:
      x: Normalised images; each side is at least the stride of the last stage.
      train: Whether BN uses the batch's statistics (and updates the collection
        'batch_stats') and stochastic depth is active (RNG stream 'dropout').
      extents: Height and width of each image in pixels. The rest, on the right
        and at the bottom, is padding and has no effect. None if there is none.

    Returns:
      Logits in at least float32. Without a head, the last map of `features`,
        averaged over its positions.

    Raises:
      ValueError: If a side is smaller than the stride of the last stage, there
        are not 3 channels, `x` is not floating point, or `extents` are wrong.
    """
    last = self._last_map(x, train, extents)
    extents = padding.strided(extents, self.arch.stride)
    logits = self._classify(last, train, extents)
    if self.num_classes and self.arch.dense_head:
      tokens = padding.fill(self.dense_head(last), extents, -jnp.inf)
      logits += _DENSE_SHARE * tokens.max((1, 2))
    return logits

  def class_and_dense_logits(
      self,
      x: Float[Array, 'b h w c'],
      *,
      train: bool,
      box: Bool[Array, 'y x'] | None = None,
  ) -> tuple[Float[Array, 'b k'], Float[Array, 'b y x k']]:
    """Returns the logits of the image and its tokens, to train on token labels.

    It is for models with a dense head.

    Args:
      x: As in `__call__`.
      train: As in `__call__`.
      box: Tokens of the last map that each image takes from its partner. They
        are swapped on the map after the stem, where each is a square of tokens
        (see `ops.image_pairs`). The dense logits are swapped back, to belong to
        the image that they are listed under. None mixes nothing.

    Returns:
      Class logits of the mixed image, and dense logits; in at least float32.

    Raises:
      ValueError: As in `__call__`.
    """
    x = self._after_stem(x, None, train)
    if box is not None:
      side = 2 ** (self.arch.stages - 1)
      fine = box.repeat(side, axis=0).repeat(side, axis=1)
      # Where sizes were rounded up, the last squares extend beyond the map.
      x = image_pairs.swap_inside(x, fine[: x.shape[1], : x.shape[2]])
    *_, last = self._stages(x, None, train).values()
    tokens = self.dense_head(last)
    if box is not None:
      tokens = image_pairs.swap_inside(tokens, box)
    return self._classify(last, train), tokens

  def embed(
      self,
      x: Float[Array, 'b h w c'],
      *,
      train: bool,
      extents: padding.Extents = None,
  ) -> Float[Array, 'b _']:
    """Returns what the last linear layer classifies: one vector for an image.

    It is the mean over positions of LN(last map) or, with head 'proj', of
    SiLU(BN(Linear(last map))); without a head, of the last map. Arguments and
    errors are those of `__call__`.
    """
    last = self._last_map(x, train, extents)
    return self._pool(last, train, padding.strided(extents, self.arch.stride))

  def _classify(self, x, train, extents=None):
    """Applies the head to the last map; without a head, averages the map."""
    pooled = self._pool(x, train, extents)
    return self.head(pooled) if self.num_classes else pooled

  def _pool(self, x, train, extents):
    if self.num_classes and self.arch.head == 'proj':
      x = jax.nn.silu(self.proj_norm(self.proj(x), extents, train=train))
    elif self.num_classes:
      x = self.norm(x)
    return padding.mean(wide(x), extents, (1, 2))

  def _last_map(self, x, train, extents):
    *_, last = self.features(x, train=train, extents=extents).values()
    return last

  def features(
      self,
      x: Float[Array, 'b h w c'],
      *,
      train: bool,
      extents: padding.Extents = None,
  ) -> dict[str, Float[Array, 'b _ _ _']]:
    """Returns the map of each stage, before downsampling, from fine to coarse.

    Keys are 'stage1', 'stage2' and so on; strides are `arch.strides`. Arguments
    and errors are those of `__call__`. With `extents`, padding is 0 in the
    maps. In a stage with LayerScale, they are in at least float32.
    """
    x = self._after_stem(x, extents, train)
    return self._stages(x, extents, train)

  def _after_stem(self, x, extents, train):
    """Returns the map after the stem; refuses images that do not fit."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
      raise ValueError(
          f'Images are {x.dtype}: must be floating point, '
          '(pixels / 255 - mean) / std.'
      )
    least = self.arch.stride
    if x.ndim != 4 or min(x.shape[1:3]) < least or x.shape[3] != 3:
      raise ValueError(
          f'Images must be at least {least}x{least}, as an array [batch, '
          f'height, width, 3], not {x.shape}.'
      )
    padding.check(extents, x.shape)
    return self.stem(x.astype(self.dtype), extents, train=train)

  def _stages(self, x, extents, train):
    """Returns the maps of `features` from the map after the stem."""
    maps, valid = {}, extents
    for stage in range(self.arch.stages):
      if stage:
        x = getattr(self, f'down{stage}')(x, valid, train=train)
      valid = padding.strided(extents, self.arch.strides[stage])
      name = f'stage{stage + 1}'
      x = getattr(self, name)(x, valid, train=train)
      norm = f'feature_norm{stage + 1}'
      out = getattr(self, norm)(x) if self.arch.feature_norm else x
      maps[name] = padding.fill(out, valid)
    return maps
