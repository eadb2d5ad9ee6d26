"""The whole augmentation of a training batch, and what evaluation does."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Integer, PRNGKeyArray, UInt8

from gswinrmt_jax.augment import crop, erase, label_map, mix, rand_augment
from gswinrmt_jax.errors import UserError

# What an augmentation with label maps must leave out: they do not follow it.
_OFF_WITH_MAPS = ('crop_padding', 'mixup_alpha', 'cutmix_alpha')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augment:
  """Settings of `augment`; hashable, so that `jit` can take them as static.

  Attributes:
    crop_padding: Zeros around the image before the random crop; 0 for no crop.
    flip: Whether images are flipped, each at even odds.
    rand_augment_ops: Operations of RandAugment per image; 0 for none.
    rand_augment_magnitude: Mean of their level, 0 to 10.
    rand_augment_std: Standard deviation of their level.
    rand_augment_prob: Probability that a drawn operation is applied.
    erase_prob: Probability of Random Erasing.
    mixup_alpha: Alpha of Mixup; 0 for no Mixup.
    cutmix_alpha: Alpha of CutMix; 0 for no CutMix.
    label_smoothing: Weight of the uniform distribution in the targets.
    num_classes: Number of classes.
    mean: Mean of the data set's channels, of pixels / 255.
    std: Standard deviation of the data set's channels, of pixels / 255.

  Raises:
    UserError: If a value is out of its range.
  """

  crop_padding: int
  flip: bool
  rand_augment_ops: int
  rand_augment_magnitude: float
  rand_augment_std: float
  rand_augment_prob: float
  erase_prob: float
  mixup_alpha: float
  cutmix_alpha: float
  label_smoothing: float
  num_classes: int
  mean: tuple[float, float, float]
  std: tuple[float, float, float]

  def __post_init__(self):
    ranges = {
        'crop_padding': (0, None),
        'rand_augment_ops': (0, None),
        'rand_augment_magnitude': (0, 10),
        'rand_augment_std': (0, None),
        'rand_augment_prob': (0, 1),
        'erase_prob': (0, 1),
        'mixup_alpha': (0, None),
        'cutmix_alpha': (0, None),
        'label_smoothing': (0, 1),
    }
    for name, (low, high) in ranges.items():
      value = getattr(self, name)
      # Written so that NaN is out of range too.
      if not (value >= low and (high is None or value <= high)):
        limit = f'at least {low}' if high is None else f'from {low} to {high}'
        raise UserError(f'{name} is {value}; set it to a number {limit}')

  @property
  def fill(self) -> tuple[int, int, int]:
    """Mean colour of the data set in grey levels, 0 to 255."""
    red, green, blue = (min(255, round(255 * m)) for m in self.mean)
    return red, green, blue


def normalize(
    image: UInt8[Array, 'b h w 3'],
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> Float32[Array, 'b h w 3']:
  """Returns `(image / 255 - mean) / std`, channel by channel.

  Args:
    image: The images.
    mean: Mean of the channels, of pixels / 255.
    std: Standard deviation of the channels, of pixels / 255.

  Returns:
    Images of mean 0 and deviation 1 over the data set.
  """
  mean = jnp.array(mean, jnp.float32)[None, None, None]
  std = jnp.array(std, jnp.float32)[None, None, None]
  return (image.astype(jnp.float32) / 255 - mean) / std


def augment(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    label: Integer[Array, ' b'],
    settings: Augment,
) -> tuple[Float32[Array, 'b h w 3'], Float32[Array, 'b k']]:
  """Augments a training batch: the protocol of the paper's Table 2.

  On uint8: random crop and flip, RandAugment; then on normalised images: Random
  Erasing, Mixup or CutMix. Every image has draws of its own, only the choice
  and the lambda of the mixing are the batch's.

  Args:
    key: The only source of chance: the same key gives the same batch.
    image: The images.
    label: Their classes.
    settings: What to do, and how much; static under `jit`.

  Returns:
    Normalised images and smoothed targets that sum to 1.
  """
  pixels, _, mix_key = _look(key, image, settings)
  target = mix.smooth_targets(
      label,
      num_classes=settings.num_classes,
      smoothing=settings.label_smoothing,
  )
  return mix.mix(
      mix_key,
      pixels,
      target,
      mixup_alpha=settings.mixup_alpha,
      cutmix_alpha=settings.cutmix_alpha,
  )


def check_with_map(settings: Augment) -> None:
  """Refuses settings that a label map does not follow.

  Raises:
    UserError: If there is padding or mixing.
  """
  for name in _OFF_WITH_MAPS:
    if getattr(settings, name):
      raise UserError(
          f'config.augment.{name} is {getattr(settings, name)}: must be 0 with '
          'token labels, whose maps do not follow it'
      )


def augment_with_map(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    whole: Float[Array, 'b s t k'],
    box: Float32[Array, 'b 4'],
    settings: Augment,
    *,
    extents: tuple[int, int],
) -> tuple[
    Float32[Array, 'b h w 3'],
    tuple[Float32[Array, 'b k'], Float32[Array, 'b y x k']],
]:
  """Augments a batch with label maps: as `augment`, without the mixing.

  Args:
    key: As in `augment`; the images get the same crop, flip, RandAugment and
      erasing as there.
    image: Crops of the images that the maps are of.
    whole: The maps, of whole images, `label_map.spread`.
    box: What each crop shows: top, left, height and width in parts of the
      image.
    settings: Those that `check_with_map` lets pass.
    extents: Rows and columns of the model's last map.

  Returns:
    Normalised images, and smoothed targets of class and dense logits.

  Raises:
    UserError: If the settings have padding or mixing.
  """
  check_with_map(settings)
  pixels, mirrored, _ = _look(key, image, settings)
  return pixels, label_map.targets(
      whole,
      box,
      mirrored,
      extents=extents,
      smoothing=settings.label_smoothing,
  )


def _look(key, image, settings):
  """Does what changes an image by itself; tells which images are flipped."""
  crop_key, rand_key, erase_key, mix_key = jax.random.split(key, 4)
  image, mirrored = crop.crop_and_flip(
      crop_key, image, padding=settings.crop_padding, flip=settings.flip
  )
  image = rand_augment.rand_augment(
      rand_key,
      image,
      ops=settings.rand_augment_ops,
      magnitude=settings.rand_augment_magnitude,
      std=settings.rand_augment_std,
      prob=settings.rand_augment_prob,
      fill=settings.fill,
  )
  pixels = normalize(image, settings.mean, settings.std)
  pixels = erase.random_erase(erase_key, pixels, prob=settings.erase_prob)
  return pixels, mirrored, mix_key
