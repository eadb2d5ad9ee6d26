"""The hierarchical model: stem, stages, head."""

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
import numpy as np

from gswinrmt_jax.models import block, dense, layers, norm, patch
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.ops import pairs
from gswinrmt_jax.ops.arrays import wide, wide_dtype

# What the dense logits count for beside the class logits, as released.
_DENSE_SHARE = 0.5

# What is kept of a block for its gradient; the rest is computed anew.
REMAT = {
    'none': None,
    'elementwise': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'blocks': jax.checkpoint_policies.nothing_saveable,
}


class Stage(nn.Module):
  """Blocks of one width; the odd ones shift their windows.

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
      self, x: Float[Array, 'b h w c'], keep: Float[Array, 'l 2 b'] | None
  ) -> Float[Array, 'b h w c']:
    """Applies the `l` blocks; `keep` as in `Block`."""
    made, policy = block.Block, REMAT[self.remat]
    if policy is not None:
      made = nn.remat(block.Block, policy=policy)
    for index in range(self.arch.depths[self.stage]):
      shifted = self.arch.shift and index % 2 == 1
      x = made(
          self.arch, self.stage, shifted, self.dtype, name=f'block{index:02d}'
      )(x, None if keep is None else keep[index])
    return x


class Backbone(nn.Module):
  """A classifier of the family; made by `create_model`.

  Attributes:
    arch: The components.
    num_classes: Number of logits; 0 leaves the heads out.
    dtype: Computation dtype; parameters are float32, logits at least.
    remat: What of the blocks is computed anew for their gradient, a name in
      `REMAT`: 'none'; 'elementwise', all but linear layers; or 'blocks', all of
      them, of which only the input is kept. Changes no parameter.
  """

  arch: Architecture
  num_classes: int
  dtype: Dtype = jnp.float32
  remat: str = 'none'

  def setup(self):
    """Makes every part; the attribute names are those of checkpoints."""
    arch = self.arch
    if arch.stem == 'conv':
      self.stem = layers.Stem(arch.widths[0], self.dtype)
    else:
      self.stem = patch.PatchEmbedding(
          arch.widths[0], arch.patch_size, arch.stem == 'patch_norm', self.dtype
      )
    merging = arch.downsample == 'merge'
    down = patch.PatchMerging if merging else layers.Downsample
    for stage in range(arch.stages):
      made = Stage(arch, stage, self.dtype, self.remat)
      setattr(self, f'stage{stage + 1}', made)
    for index, width in enumerate(arch.widths[1:], start=1):
      setattr(self, f'down{index}', down(width, self.dtype))
    if arch.feature_norm:
      for stage in range(arch.stages):
        norm_layer = norm.LayerNorm(epsilon=1e-5)
        setattr(self, f'feature_norm{stage + 1}', norm_layer)
    if not self.num_classes:
      return
    if arch.head == 'proj':
      self.proj = dense.AffineDense(arch.projection, self.dtype)
      self.proj_norm = norm.BatchNorm(self.dtype)
    else:
      self.norm = norm.LayerNorm()
    self.head = dense.Dense(self.num_classes, dtype=wide_dtype(self.dtype))
    if arch.dense_head:
      self.dense_head = dense.Dense(
          self.num_classes, dtype=wide_dtype(self.dtype)
      )

  def __call__(
      self, x: Float[Array, 'b h w c'], *, train: bool
  ) -> Float[Array, 'b k']:
    """Classifies normalised images.

    A dense head has its share in training as well: what `train` changes is in
    the layers, not in what the logits mean.

        logits = class logits + 1/2 max_hw(dense logits)

    Args:
      x: Images of any extents from the stride of the last stage, normalised.
      train: Whether BN takes the batch's statistics (and updates the
        collection 'batch_stats') and stochastic depth acts (stream 'dropout').

    Returns:
      Logits, float32 at least; without a head the last map of `features`,
        averaged.

    Raises:
      ValueError: If an extent is below that or there are not 3 channels.
    """
    if self.num_classes and self.arch.dense_head:
      logits, tokens = self.class_and_dense_logits(x, train=train)
      return logits + _DENSE_SHARE * tokens.max((1, 2))
    return self._classify(self._last_map(x, train, None), train)

  def class_and_dense_logits(
      self,
      x: Float[Array, 'b h w c'],
      *,
      train: bool,
      box: Bool[Array, 'y x'] | None = None,
  ) -> tuple[Float[Array, 'b k'], Float[Array, 'b y x k']]:
    """Returns what token labels train: logits of the image, and of its tokens.

    Args:
      x: As for a call.
      train: As for a call.
      box: Tokens of the last map that each image takes from its partner, on
        the map behind the stem (`ops.pairs.swap_inside`; a token of the last
        map is a square of that one). The dense logits are swapped back, so
        that they belong to the image they are listed under. None mixes nothing.

    Returns:
      Class logits, of the mixed image, and dense logits; float32 at least.

    Raises:
      ValueError: As for a call, and if the model has no dense head.
    """
    if not (self.num_classes and self.arch.dense_head):
      raise ValueError('There are no dense logits: set dense_head=True.')
    last = self._last_map(x, train, box)
    tokens = self.dense_head(last)
    if box is not None:
      tokens = pairs.swap_inside(tokens, box)
    return self._classify(last, train), tokens

  def _classify(self, x, train):
    """Applies the head to the last map; without one, averages the map."""
    if self.num_classes and self.arch.head == 'proj':
      x = jax.nn.silu(self.proj_norm(self.proj, x, train=train))
    elif self.num_classes:
      x = self.norm(x)
    pooled = wide(x).mean((1, 2))
    return self.head(pooled) if self.num_classes else pooled

  def _last_map(self, x, train, box):
    return self._maps(x, train, box)[f'stage{self.arch.stages}']

  def features(
      self, x: Float[Array, 'b h w c'], *, train: bool
  ) -> dict[str, Float[Array, 'b _ _ _']]:
    """Returns the map after each stage, before its downsampling.

    Keys 'stage1', 'stage2' and so on, the strides those of the stem, then
    doubling; arguments and errors as for a call.
    """
    return self._maps(x, train, None)

  def _maps(self, x, train, box):
    """Returns the maps of `features`; with a box, mixed behind the stem."""
    _, height, width, channels = x.shape
    least = self.arch.stride
    if min(height, width) < least or channels != 3:
      raise ValueError(
          f'Images must be at least {least}x{least} with 3 channels, not '
          f'{height}x{width} with {channels}.'
      )
    depths = self.arch.depths
    keep = self._draw_keep(len(x)) if train else None
    x = self.stem(x.astype(self.dtype), train=train)
    if box is not None:
      side = 2 ** (self.arch.stages - 1)
      fine = box.repeat(side, axis=0).repeat(side, axis=1)
      # Where the extents were rounded up, the last squares reach beyond.
      x = pairs.swap_inside(x, fine[: x.shape[1], : x.shape[2]])
    maps = {}
    for stage in range(self.arch.stages):
      if stage:
        x = getattr(self, f'down{stage}')(x, train=train)
      first = sum(depths[:stage])
      own = None if keep is None else keep[first : first + depths[stage]]
      x = getattr(self, f'stage{stage + 1}')(x, own)
      name = f'stage{stage + 1}'
      maps[name] = x
      if self.arch.feature_norm:
        maps[name] = getattr(self, f'feature_norm{stage + 1}')(x)
    return maps

  def _draw_keep(self, batch: int) -> Float[Array, 'l 2 b'] | None:
    """Stochastic depth: rate `p_max i / (L - 1)` for block i of L, in one draw.

    Kept branches are scaled by `1 / (1 - rate)`, so the mean stays.
    """
    if not self.arch.drop_path_rate:
      return None
    total = sum(self.arch.depths)
    rates = self.arch.drop_path_rate * np.arange(total) / max(total - 1, 1)
    survival = jnp.asarray(1 - rates, jnp.float32)[:, None, None]
    kept = jax.random.bernoulli(
        self.make_rng('dropout'), survival, (total, 2, batch)
    )
    return kept / survival
