"""Box mixing of token labels: which tokens are swapped, and what then is asked.

LV-ViT calls it MixToken (Jiang et al. 2021). The model does the swapping, see
`models.backbone.Backbone.class_and_dense_logits`.
"""

import jax
from jaxtyping import Array, Bool, Float32, PRNGKeyArray

from gswinrmt_jax.augment import mix


def draw_box(
    key: PRNGKeyArray, *, height: int, width: int
) -> Bool[Array, 'h w']:
  """Draws the box of a batch: `lambda ~ Beta(1, 1)`, then as in CutMix.

  Args:
    key: Source of the draws.
    height: Rows of the model's last map.
    width: Columns of it.

  Returns:
    True for the tokens that each image takes from its partner.
  """
  share_key, box_key = jax.random.split(key)
  share, _ = mix.draw_lambda(share_key, mixup_alpha=0.0, cutmix_alpha=1.0)
  return mix.cutmix_mask(box_key, share, height=height, width=width)


def mix_targets(
    target: Float32[Array, 'b k'], box: Bool[Array, 'h w']
) -> Float32[Array, 'b k']:
  """Mixes the targets of whole images by the area that stayed.

      out = (1 - a) target + a partner's,   a = mean(box)

  Args:
    target: Of the images before the mixing.
    box: As drawn.

  Returns:
    Targets of the mixed images.
  """
  return mix.blend(target, box.mean(dtype=target.dtype))
