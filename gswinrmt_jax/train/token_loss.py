"""The loss of token labels, with box mixing."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from gswinrmt_jax.augment import mix


def token_loss(
    apply: Callable[..., Any],
    image: jax.Array,
    targets: tuple[jax.Array, jax.Array],
    key: jax.Array,
    *,
    weight: float,
) -> tuple[jax.Array, tuple[jax.Array, Any]]:
  """Returns the loss of token labels (LV-ViT, as in the released RMT).

      L = CE(class logits, mixed target) + weight mean_hw CE(dense, target_hw)

  Images are mixed in a box behind the stem and their dense logits swapped back
  in the model; the class logits are of the mixed image, and so is their target.

  Args:
    apply: The model's, in training.
    image: Normalised.
    targets: Soft, of images [b k] and of their tokens [b h w k].
    key: Draws the box.
    weight: Of the dense logits.

  Returns:
    The loss, and class logits and updates of the model.
  """
  of_image, of_tokens = targets
  height, width = of_tokens.shape[1:3]
  box = mix.token_box(key, height=height, width=width)
  (logits, dense), updates = apply(
      image, box=box, method='class_and_dense_logits'
  )
  of_image = mix.blend_with_partner(of_image, box.mean(dtype=of_image.dtype))
  class_loss = optax.softmax_cross_entropy(logits, of_image).mean()
  dense_loss = optax.softmax_cross_entropy(dense, of_tokens).mean()
  return class_loss + weight * dense_loss, (logits, updates)
