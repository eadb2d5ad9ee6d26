"""Augments training batches and normalises images."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import (
    Array,
    Bool,
    Float,
    Float32,
    Int32,
    Integer,
    PRNGKeyArray,
    UInt8,
)

from gswinrmt_jax.augment import image_ops, mix, rand_augment, random_erasing


def normalize(
    image: UInt8[Array, 'b h w 3'] | Float[Array, 'b h w 3'],
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> Float32[Array, 'b h w 3']:
  """Returns `(image / 255 - mean) / std`, per channel.

  Pixels are from 0 to 255, even if they are floats.
  `mean` and `std` are statistics of the data set's pixels / 255.
  """
  mean = jnp.array(mean, jnp.float32)[None, None, None]
  std = jnp.array(std, jnp.float32)[None, None, None]
  return (image.astype(jnp.float32) / 255 - mean) / std


def augment(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    label: Integer[Array, ' b'],
    config: Any,
    *,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    num_classes: int,
    smoothing: float,
    mixing: bool | Bool[Array, ''] = True,
) -> tuple[Float32[Array, 'b h w 3'], Float32[Array, 'b k']]:
  """Augments a training batch as in the paper's Table 2.

  Random crop, flips and RandAugment are applied to uint8 images. Normalisation
  comes next, then Random Erasing, then Mixup or CutMix, which `mixing=False`
  turns off, as in the last epochs. Draws are independent per image, except
  those of the mixing, which the whole batch shares. The key is the only source
  of randomness: the same key gives the same batch.

  `config` is the section `config.augment`, described in `recipes.FIELDS`, and
  `smoothing` is `config.label_smoothing`. `mean` and `std` are as in
  `normalize`.

  Returns:
    Normalised images, and smoothed targets that sum to 1.

  Raises:
    ValueError: If images are not uint8, or there is not one label for each.
  """
  if label.shape != image.shape[:1]:
    raise ValueError(
        f'label has the shape {label.shape}: {len(image)} images need '
        f'({len(image)},), one class each'
    )
  image, _, mix_key = augment_images(key, image, config, mean=mean, std=std)
  target = mix.smooth_targets(
      label, num_classes=num_classes, smoothing=smoothing
  )
  return mix.mix(
      mix_key,
      image,
      target,
      mixup_alpha=config.mixup_alpha,
      cutmix_alpha=config.cutmix_alpha,
      prob=config.mix_prob,
      allowed=mixing,
  )


def augment_images(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    config: Any,
    *,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> tuple[Float32[Array, 'b h w 3'], Bool[Array, ' b'], PRNGKeyArray]:
  """Augments images, each by itself: all of `augment` but the mixing.

  Returns:
    Normalised images, which of them are flipped left to right, and the key for
    the mixing.

  Raises:
    ValueError: If images are not uint8.
  """
  if image.dtype != jnp.uint8:
    raise ValueError(f'image is {image.dtype}: pixels must be uint8, 0 to 255')
  crop_key, rand_key, erase_key, mix_key = jax.random.split(key, 4)
  image, flipped = crop_and_flip(
      crop_key, image, padding=config.crop_padding, flip=config.flip
  )
  if config.flip_vertical:
    image = flip_vertical(jax.random.fold_in(crop_key, 1), image)
  red, green, blue = (min(255, round(255 * level)) for level in mean)
  image = rand_augment.rand_augment(
      rand_key,
      image,
      op_set=config.rand_augment_set,
      ops=config.rand_augment_ops,
      magnitude=config.rand_augment_magnitude,
      std=config.rand_augment_std,
      prob=config.rand_augment_prob,
      fill=(red, green, blue),
  )
  image = normalize(image, mean, std)
  image = random_erasing.random_erase(
      erase_key,
      image,
      prob=config.erase_prob,
      area=config.erase_area,
      aspect=config.erase_aspect,
      fill=config.erase_fill,
  )
  return image, flipped, mix_key


def crop_and_flip(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    *,
    padding: int,
    flip: bool,
) -> tuple[UInt8[Array, 'b h w 3'], Bool[Array, ' b']]:
  """Pads with zeros, then randomly crops to the original size and flips.

  There are `padding` rows and columns of zeros on each side, and all
  (2 padding + 1)^2 windows are equally likely. With `flip`, each image is
  flipped left to right with probability 1/2.

  Returns:
    Images of the same size, and which of them are flipped.
  """
  batch = image.shape[0]
  if not padding and not flip:
    return image, jnp.zeros(batch, bool)
  # One call for all draws: compiling one call per draw took half of the time
  # to the first batch.
  uniform = jax.random.uniform(key, (3, batch), dtype=jnp.float32)
  places = (uniform[:2] * (2 * padding + 1)).astype(jnp.int32)
  down, right = places - padding
  flipped = (uniform[2] < 0.5) & flip
  return shift_and_flip(image, down, right, flipped), flipped


def flip_vertical(
    key: PRNGKeyArray, image: UInt8[Array, 'b h w 3']
) -> UInt8[Array, 'b h w 3']:
  """Flips each image top to bottom with probability 1/2."""
  flipped = jax.random.bernoulli(key, shape=(len(image), 1, 1, 1))
  return jnp.where(flipped, image[:, ::-1], image)


def shift_and_flip(
    image: UInt8[Array, 'b h w 3'],
    down: Int32[Array, ' b'],
    right: Int32[Array, ' b'],
    flipped: Bool[Array, ' b'],
) -> UInt8[Array, 'b h w 3']:
  """Cuts a window of the image's size that starts at (down, right), then flips.

      out[y, x] = image[y + down, x' + right],  x' = w - 1 - x where flipped

  Pixels outside the image are 0; no padded copy is made. A window with negative
  offsets starts above the image or left of it.
  """
  _, height, width, _ = image.shape
  column = jnp.arange(width, dtype=jnp.int32)[None]
  column = jnp.where(flipped[:, None], width - 1 - column, column)
  column = (column + right[:, None])[:, None, :]
  row = (jnp.arange(height, dtype=jnp.int32)[None] + down[:, None])[:, :, None]
  window = image_ops.resample_nearest(image_ops.pack(image), column, row)
  return image_ops.unpack(window)
