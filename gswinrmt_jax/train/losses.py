"""Losses: cross-entropy of images, tokens or pixels; those of detectors."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import optax

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import mix
from gswinrmt_jax.data import pictures
from gswinrmt_jax.evals import segmentation
from gswinrmt_jax.models.dense.detector import Detector
from gswinrmt_jax.train import detection_losses

# (apply, normalised image, targets, key)
#   -> (loss, (metrics by name, updated collections))
# `apply` is the model's in training mode, bound to everything but the image.
Metrics = dict[str, jax.Array]
Loss = Callable[
    [Callable[..., Any], jax.Array, Any, jax.Array],
    tuple[jax.Array, tuple[Metrics, Any]],
]

# Choices of `mean_over`, the divisor of the pixel loss.
MEANS = ('labelled', 'all')


def from_config(config: ml_collections.ConfigDict, model: nn.Module) -> Loss:
  """Returns the loss of a resolved config.

  Its targets are those that the augmentation of the same config makes.
  """
  match recipes.task(config):
    case 'detection':
      return functools.partial(objects_loss, model=model)
    case 'segmentation':
      head = config.segmenter
      weight = head.auxiliary_channels and head.auxiliary_weight
      return functools.partial(
          pixel_loss, mean_over=head.mean_over, auxiliary_weight=weight
      )
  if config.token_label_weight:
    return functools.partial(token_label_loss, weight=config.token_label_weight)
  return class_loss


def class_loss(
    apply: Callable[..., Any], image: jax.Array, targets: Any, key: jax.Array
) -> tuple[jax.Array, tuple[Metrics, Any]]:
  """Returns the mean cross-entropy with the soft targets, in float32."""
  del key
  logits, updates = apply(image)
  loss = optax.softmax_cross_entropy(logits, targets).mean()
  return loss, ({'accuracy': _accuracy(logits, targets)}, updates)


def _accuracy(logits, targets):
  """Returns the accuracy against the class with the largest target weight."""
  return jnp.mean(logits.argmax(-1) == targets.argmax(-1))


def token_label_loss(
    apply: Callable[..., Any],
    image: jax.Array,
    targets: tuple[jax.Array, jax.Array],
    key: jax.Array,
    *,
    weight: float,
) -> tuple[jax.Array, tuple[Metrics, Any]]:
  """Returns the token labelling loss (LV-ViT, as in the released RMT).

      L = CE(class logits, mixed target) + weight mean_hw CE(dense, target_hw)

  The model mixes images within a box after the stem and swaps the dense logits
  back. Class logits belong to the mixed image, so their target is mixed, too.
  The key draws the box, and the accuracy is that of the class logits.

  Targets are soft, those of images [b k] and those of their tokens [b h w k].
  """
  class_targets, token_targets = targets
  height, width = token_targets.shape[1:3]
  box = mix.token_box(key, height=height, width=width)
  (logits, dense), updates = apply(
      image, box=box, method='class_and_dense_logits'
  )
  share = box.mean(dtype=class_targets.dtype)
  class_targets = mix.blend_with_partner(class_targets, share)
  loss = optax.softmax_cross_entropy(logits, class_targets).mean()
  dense_loss = optax.softmax_cross_entropy(dense, token_targets).mean()
  metrics = {'accuracy': _accuracy(logits, class_targets)}
  return loss + weight * dense_loss, (metrics, updates)


def pixel_loss(
    apply: Callable[..., Any],
    image: jax.Array,
    labels: jax.Array,
    key: jax.Array,
    *,
    mean_over: str,
    auxiliary_weight: float,
) -> tuple[jax.Array, tuple[Metrics, Any]]:
  """Returns the loss of a segmenter.

      L = CE(logits, labels) + auxiliary_weight CE(auxiliary, labels)

  Labels are integers [b h w], or `pictures.VOID`; `mean_over` is as in
  `pixel_cross_entropy`. The accuracy counts labelled pixels. `auxiliary_weight`
  is 0.4 in the released code, and 0 for a segmenter without an auxiliary head.
  """
  del key
  if auxiliary_weight:
    (logits, auxiliary), updates = apply(image, method='logits_and_auxiliary')
  else:
    logits, updates = apply(image)
  loss = pixel_cross_entropy(logits, labels, mean_over=mean_over)
  if auxiliary_weight:
    loss += auxiliary_weight * pixel_cross_entropy(
        auxiliary, labels, mean_over=mean_over
    )
  labelled = labels != pictures.VOID
  right = ((logits.argmax(-1) == labels) & labelled).sum()
  metrics = {'pixel_accuracy': right / jnp.maximum(labelled.sum(), 1)}
  return loss, (metrics, updates)


def pixel_cross_entropy(
    logits: jax.Array, labels: jax.Array, *, mean_over: str
) -> jax.Array:
  """Returns the mean cross-entropy of pixels; ignored pixels add nothing.

  Args:
    logits: float32 [b h w k].
    labels: Integers [b h w] from 0 to k - 1, or `pictures.VOID`. Any other
      makes the loss not a number.
    mean_over: Divisor of the sum: 'labelled', the number of labelled pixels, or
      'all', the number of all pixels, as in RMT's released segmentation. With
      'all' the loss is scaled by the share of labelled pixels, which varies
      from batch to batch.

  Raises:
    ValueError: If `mean_over` is neither, or logits and labels are not of the
      same pixels.
  """
  if mean_over not in MEANS:
    raise ValueError(f'{mean_over=} is not one of {MEANS}.')
  if labels.shape != logits.shape[:-1]:
    raise ValueError(
        f'labels {labels.shape} must have the axes of logits {logits.shape} '
        'but the last.'
    )
  labelled = labels != pictures.VOID
  losses = segmentation.cross_entropy(logits, jnp.where(labelled, labels, 0))
  total = jnp.where(labelled, losses, 0.0).sum()
  count = labels.size if mean_over == 'all' else labelled.sum()
  return total / jnp.maximum(count, 1)


def objects_loss(
    apply: Callable[..., Any],
    image: jax.Array,
    targets: Mapping[str, Any],
    key: jax.Array,
    *,
    model: Detector,
) -> tuple[jax.Array, tuple[Metrics, Any]]:
  """Returns the loss of a detector, see `detection_losses`.

  Targets are the 'extents' of the images and the 'truth'. The metrics are the
  parts of the loss by name.
  """
  del key
  found, updates = apply(image, **targets)
  loss, parts = detection_losses.detection_loss(model, found, targets['truth'])
  return loss, (parts, updates)
