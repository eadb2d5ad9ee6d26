"""What recipes share: the protocols of Table 2, of RMT's ADE20K, the digits."""

from collections.abc import Sequence

import ml_collections
from ml_collections import config_dict

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.recipes.checks import off_for
from gswinrmt_jax.recipes.fields import FIELDS
from gswinrmt_jax.recipes.resolved import head_values

# Readings of the paper's Table 2, which names augmentations without settings.
_READINGS = {
    # As in torchvision's RandAugment() and RandomErasing(0.25). Few batches are
    # mixed: with more, no model reaches the paper's training accuracy of 88 %.
    # The rate is not the printed 1e-4; docs/decisions.md says why.
    'torchvision': {
        'augment.rand_augment_set': 'torchvision',
        'augment.rand_augment_std': 0.0,
        'augment.rand_augment_prob': 1.0,
        'augment.erase_area': (0.02, 0.33),
        'augment.erase_aspect': (0.3, 3.3),
        'augment.erase_fill': 'zeros',
        'augment.mix_prob': 0.2,
        'optimizer.learning_rate': 3e-4,
        'model.linear_start': 'uniform',
    },
    # As in DeiT and timm, every batch mixed, with the printed rate.
    'deit': {},
    # Only what every reading keeps, with the printed rate.
    'plain': {
        'augment.rand_augment_ops': 0,
        'augment.erase_prob': 0.0,
        'augment.mixup_alpha': 0.0,
        'augment.cutmix_alpha': 0.0,
    },
}


# Digits have 16 to 32 pixels, and a scene up to five of them.
_FEW_BOXES = {
    'anchor_scale': 4.0,
    'train_candidates': 64,
    'candidates': 64,
    'train_proposals': 32,
    'proposals': 32,
    'roi_samples': 32,
    'detections': 10,
}
_SMALL_DETECTOR = {
    'retina': {'anchor_scale': 2.0, 'tower_depth': 1, 'detections': 10},
    'mask': _FEW_BOXES,
    # Three times the heads.
    'cascade': _FEW_BOXES
    | dict.fromkeys(('conv_channels', 'linear_channels', 'mask_channels'), 8),
}


def defaults(model_name: str) -> ml_collections.ConfigDict:
  """Returns a locked config in which each field has its default.

  The model's fields are None, which keeps the values of the named model.
  """
  # Imported here, so that listing recipes and `--help` need not wait for JAX.
  from gswinrmt_jax.models import factory

  config = ml_collections.ConfigDict()
  for path, declared in FIELDS.items():
    section = path.rpartition('.')[0]
    if section and section not in config:
      config[section] = ml_collections.ConfigDict()
    config.update_from_flattened_dict({path: declared.default})
  config.model.name = model_name
  for name, kind in factory.FIELDS.items():
    config.model[name] = config_dict.placeholder(kind)
  # Locked, so that a recipe cannot set unknown fields.
  return config.lock()


def cifar10(model_name: str) -> ml_collections.ConfigDict:
  """Returns the CIFAR-10 protocol of Table 2, in the default reading.

  Args:
    model_name: A named model.
  """
  config = defaults(model_name)
  set_reading(config, 'torchvision')
  return config


def set_reading(config: ml_collections.ConfigDict, reading: str) -> None:
  """Overwrites augmentation, learning rate and initialisation.

  Crop and flip stay as they are.

  Args:
    config: The recipe to change.
    reading: The reading of Table 2: 'torchvision', 'deit' or 'plain' (only the
      recipe's crop and flip; for Mini-ImageNet, which has no such crop, the
      flip alone).
  """
  reset = {
      path: FIELDS[path].default if path in FIELDS else None  # the model's
      for fields in _READINGS.values()
      for path in fields
  }
  config.update_from_flattened_dict({**reset, **_READINGS[reading]})


def mini_imagenet(model_name: str) -> ml_collections.ConfigDict:
  """Returns the Mini-ImageNet protocol of Table 2, in the default reading.

  Args:
    model_name: A named model, in the paper one of the large models.
  """
  config = cifar10(model_name)
  config.num_epochs = 40
  config.eval_batch_size = 250
  config.data.name = 'mini_imagenet'  # as written by `gswinrmt prepare`
  config.data.image_size = 224  # the whole image, resized (section 4.1)
  config.data.storage = 'disk'  # 7.5 GB, decoded once for all runs
  config.augment.crop_padding = 0
  return config


def digits(model_name: str) -> ml_collections.ConfigDict:
  """Returns a short recipe for a named model on the packaged 8x8 digits.

  The model is narrowed. Because training is short, regularisation that slows it
  down (drop path, label smoothing, mixing) is off. The only augmentation is a
  shift by up to one of the 8x8 pixels: a mirrored digit is not a digit.
  """
  config = defaults(model_name)
  set_reading(config, 'plain')
  config.dtype = 'float32'
  config.batch_size = 64
  config.eval_batch_size = 100
  config.num_epochs = 12
  config.log_every_steps = 10
  _shrink(config, widths=(16, 32, 48, 64), depths=(1, 1, 2, 1))
  config.model.drop_path_rate = 0.0

  config.data.name = 'digits'
  config.augment.crop_padding = 4
  config.augment.flip = False
  config.label_smoothing = 0.0
  config.optimizer.learning_rate = 3e-3
  config.optimizer.warmup_epochs = 1.0
  return config


def segmentation(model_name: str, head: str) -> ml_collections.ConfigDict:
  """Returns the defaults of segmenters, with unsupported features off.

  Args:
    model_name: The backbone, a named model.
    head: Its decode head, 'fpn' or 'uper'.
  """
  config = defaults(model_name)
  config.update_from_flattened_dict(off_for('segmentation'))
  config.segmenter.head = head
  return config


def detection(model_name: str, head: str) -> ml_collections.ConfigDict:
  """Returns the defaults of detectors, with unsupported features off.

  Args:
    model_name: The backbone, a named model.
    head: 'retina', 'mask' or 'cascade', as in `create_detector`.
  """
  config = defaults(model_name)
  config.update_from_flattened_dict(off_for('detection'))
  config.detector.head = head
  return config


def ade20k(model_name: str, head: str) -> ml_collections.ConfigDict:
  """Returns the common part of the recipes of RMT's released ADE20K models.

  Args:
    model_name: The backbone, a named model.
    head: 'fpn' or 'uper'.
  """
  config = segmentation(model_name, head)
  config.batch_size = 16  # on 8 GPUs, with synchronised BatchNorm
  config.eval_batch_size = 8
  config.num_epochs = 0
  config.eval_every_epochs = 6  # about 7,600 steps; released: 8,000
  config.segmenter.mean_over = 'all'
  config.data.name = 'ade20k'
  config.data.test_split = ''  # the test labels are not public
  config.data.fit_within = (2048, 512)
  config.data.workers = 8  # ours
  config.augment.photometric = True
  config.optimizer.schedule = 'poly'
  config.optimizer.warmup_epochs = 0.0
  return config


def split_model(
    argument: str | None, models: Sequence[str], default: str = ''
) -> tuple[str, str | None]:
  """Splits `MODEL[,REST]`, the argument after the colon, into model and rest.

  Args:
    argument: The argument; None and a lone 'smoke' select the default.
    models: The models of the recipe.
    default: The default model; '' if the argument must name one.

  Raises:
    UserError: If the argument does not begin with one of the models.
  """
  model, _, rest = (argument or default).partition(',')
  if default and argument == 'smoke':
    model, rest = default, model
  if model not in models:
    said = f"the model '{model}' is unknown" if model else 'no model is named'
    raise UserError(
        f'{said}: name one of {", ".join(models)} after the colon, as in '
        f'--config=NAME:{models[0]}'
    )
  return model, rest or None


def with_argument(
    config: ml_collections.ConfigDict,
    argument: str | None,
    *,
    table2: bool = False,
    words: Sequence[str] = (),
) -> ml_collections.ConfigDict:
  """Applies the argument after the colon of `--config=FILE:ARGUMENT`.

  Args:
    config: A full recipe.
    argument: None for the recipe itself; 'smoke' for a check that everything
      runs, which takes about 40 seconds of one CPU core: one epoch of the
      model, narrowed, on the packaged digits (segmenters: on their pixels;
      detectors: on scenes of them),
      with the recipe's augmentation and precision and quick compilation. A
      recipe of Table 2 also takes a reading, as in `set_reading`, and
      'READING,smoke'.
    table2: Whether the recipe belongs to Table 2.
    words: What else the recipe's argument may have, for the message.

  Returns:
    The recipe to run.

  Raises:
    UserError: If the argument is unknown.
  """
  if table2 and argument:
    reading, _, rest = argument.partition(',')
    if reading in _READINGS:
      set_reading(config, reading)
      argument = rest or None
  if argument is None:
    return config
  if argument != 'smoke':
    names = (*words, *(_READINGS if table2 else ()), 'smoke')
    known = ', '.join(f"'{name}'" for name in names)
    raise UserError(
        f"unknown or misplaced argument '{argument}' (known, in this order: "
        f'{known})'
    )
  small = digits(config.model.name)
  narrow = {
      path: min(16, value)
      for path, value in head_values(config).items()
      if path.endswith('channels') and value  # 0: there is no such part
  }
  config.update_from_flattened_dict(narrow)
  if config.detector.head:
    small.data.update(name='digit_boxes', storage='decode')
    small.data.mask_crop = config.data.mask_crop
    if config.augment.multi_scale:  # shares of a size
      small.data.fit_within = (64, 64)
    small.update(batch_size=16, eval_batch_size=16)
    config.detector.update(_SMALL_DETECTOR[config.detector.head])
  if config.segmenter.head:
    small.data.update(name='digit_masks', storage='decode', crop_size=(32, 32))
  config.data = small.data
  for name in ('batch_size', 'eval_batch_size', 'log_every_steps'):
    config[name] = small[name]
  config.num_epochs, config.num_steps = 1, 0
  config.compile_effort = 'quick'  # most of the time is compilation
  config.token_label_weight = 0.0  # the digits have no label maps
  config.init_from = config.optimizer.freeze = ''  # of a wider model
  config.optimizer.freeze_statistics = False
  config.stop_after_epochs, config.profile_steps = 0, ''  # of a longer run
  config.accumulate_steps = 1  # of a larger batch
  config.augment.mix_off_epochs = 0  # the only epoch is mixed
  padding = config.augment.crop_padding, small.augment.crop_padding
  config.augment.crop_padding = min(padding)
  config.optimizer.warmup_epochs = 0.25
  config.optimizer.warmup_steps = 0
  if config.optimizer.schedule == 'drops':  # None is within one epoch.
    config.optimizer.schedule = 'cosine'
  _shrink(config, widths=(8, 8, 16, 16), depths=(1, 1, 1, 1))
  return config


def _shrink(config, *, widths, depths):
  """Narrows the named model and keeps its number of stages."""
  from gswinrmt_jax.models import named

  if config.model.name in named.MODELS:  # unknown names are refused later
    named_widths = named.MODELS[config.model.name].widths
    stages = len(config.model.widths or named_widths)
    widths, depths = widths[:stages], depths[:stages]
  config.model.widths = widths
  config.model.depths = depths
  config.model.num_heads = tuple(max(width // 16, 1) for width in widths)
