"""Declares all config fields, and the defaults that recipes share.

A recipe is a file in `configs/` that returns a `ConfigDict`. Each field can be
overridden on the command line: `--config.optimizer.learning_rate=3e-4`. No
other fields are read, except those of the model (`models.factory.FIELDS`).
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import os
import re
from typing import Any

import ml_collections
from ml_collections import config_dict

from gswinrmt_jax.errors import did_you_mean, UserError

_LONGEST = 1024  # characters of a name or path
_LARGEST = {int: 2**31 - 1, float: 3.4e38}  # of int32 and float32
_DTYPES = ('float32', 'bfloat16')
_FORMS = ('auto', 'banded', 'cyclic')
_CONVS = ('auto', 'shift', 'conv')
_CROPS = ('resize', 'random_resized')
_OP_SETS = ('timm', 'torchvision')
_STORAGES = ('memory', 'disk', 'decode', 'device', 'auto')
_HEADS = ('', 'fpn', 'uper')
_MEANS = ('labelled', 'all')
_DECAYS = ('kernels', 'all', 'not_norms')
_SCHEDULES = ('cosine', 'epochs', 'poly')


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of a config.

  Attributes:
    default: Value in the CIFAR-10 recipe; also sets the type. A pair of
      integers is a size in pixels; another pair is the ends of a range.
    meaning: Description with unit, which `--help` prints.
    at_least: Smallest allowed value; a range must start above 0.
    at_most: Largest allowed value, or largest end of a range.
    below: Exclusive upper bound.
    choices: Allowed values.
    free: Whether a run may resume with another value, because the field affects
      no result, or only rounding.
  """

  default: Any
  meaning: str
  _: dataclasses.KW_ONLY
  at_least: float = 0
  at_most: float | None = None
  below: float | None = None
  choices: tuple[str, ...] = ()
  free: bool = False

  def wanted(self, value: Any) -> str:
    """Returns what a value must be instead, or '' if it is allowed."""
    if self.choices:
      known = isinstance(value, str) and value in self.choices
      if known:
        return ''
      near = did_you_mean(str(value), self.choices)
      return ' or '.join(f"'{one}'" for one in self.choices) + near
    kind = type(self.default)
    if kind is bool:
      return '' if isinstance(value, bool) else 'True or False'
    if kind is str:
      return '' if _is_text(value) else f'text of up to {_LONGEST:,} characters'
    if kind is tuple:
      return self._wanted_pair(value)
    if not _is_number(value, kind):
      return f'a {"whole " * (kind is int)}number, {self._range(kind)}'
    return '' if self._holds(value, kind) else self._range(kind)

  def _wanted_pair(self, value):
    pair = isinstance(value, tuple) and len(value) == 2
    if isinstance(self.default[0], int):
      sides = pair and all(_is_number(side, int) for side in value)
      if sides and all(self._holds(side, int) for side in value):
        return ''
      return f'two whole numbers, each {self._range(int)}'
    pair = pair and all(_is_number(each, float) for each in value)
    if pair and 0 < value[0] <= value[1] <= (self.at_most or math.inf):
      return ''
    limit = f', which is not above {self.at_most}' if self.at_most else ''
    return f'two numbers above 0, the first not above the second{limit}'

  def _holds(self, value, kind):
    most = _LARGEST[kind] if self.at_most is None else self.at_most
    # Written so that NaN is out of range too.
    below = self.below is None or value < self.below
    return self.at_least <= value <= most and below

  def _range(self, kind):
    if self.below is not None:
      return f'at least {self.at_least:g} and below {self.below:g}'
    if self.at_most is not None:
      return f'from {self.at_least:g} to {self.at_most:,}'
    limit = f', at most {_LARGEST[int]:,}' if kind is int else ''
    return f'at least {self.at_least:g}{limit}'


# A field that may change when a run resumes.
_free = functools.partial(Field, free=True)

# Keyed by path, in the order of `--help`.
FIELDS: Mapping[str, Field] = {
    # JAX's keys have 32 bits: larger seeds would repeat smaller ones.
    'seed': Field(0, 'seed of all random draws', at_most=2**32 - 1),
    'dtype': Field(
        'bfloat16',
        'dtype of the computation; parameters are float32',
        choices=_DTYPES,
    ),
    'remat': _free(
        'none',
        "'blocks' or 'elementwise': recompute activations to save memory",
    ),
    'attention_impl': _free(
        'auto',
        'implementation of shifted windows; changes speed only',
        choices=_FORMS,
    ),
    'depthwise_impl': _free(
        'auto',
        'implementation of depthwise convolutions; changes speed only',
        choices=_CONVS,
    ),
    'batch_size': Field(128, 'images per step, over all devices', at_least=1),
    'accumulate_steps': Field(
        1, 'parts into which a batch is split, to save memory', at_least=1
    ),
    'eval_batch_size': _free(
        500, 'images per evaluation step; changes speed only', at_least=1
    ),
    'num_epochs': Field(50, 'epochs of the whole schedule; 0: use num_steps'),
    'num_steps': Field(0, 'steps of the whole schedule; 0: use num_epochs'),
    'stop_after_epochs': _free(
        0,
        'stop after this many epochs, a multiple of eval_every_epochs; the '
        'schedule is unchanged; 0: never',
    ),
    'eval_every_epochs': Field(
        1, 'epochs between validations, checkpoints and plots', at_least=1
    ),
    'checkpoint_every_steps': _free(
        0, 'steps between mid-epoch checkpoints; 0: none'
    ),
    'log_every_steps': _free(50, 'steps between logs', at_least=1),
    'profile_steps': _free('', "steps 'FIRST:LAST' to trace into RUN/profile"),
    # Free, because it has no effect until a step is not finite.
    'nan_policy': _free(
        'stop',
        "if loss or gradient is not finite: end the run, or 'skip' the update",
        choices=('stop', 'skip'),
    ),
    'compile_effort': _free(
        'full',
        "'quick' starts sooner on a CPU, but takes longer per step",
        choices=('full', 'quick'),
    ),
    'ema_decay': Field(
        0.0,
        'decay of the moving average of the weights, per 512 images; 0: none',
        below=1,
    ),
    'init_from': Field('', 'run, weights or checkpoint to fine-tune'),
    'mesh.data': _free(0, 'expected number of devices; 0: any number'),
    'model.name': Field(
        '', 'named model; `gswinrmt summarize --all` lists them'
    ),
    'segmenter.head': Field(
        '', "decode head of a segmenter; '': a classifier", choices=_HEADS
    ),
    'segmenter.channels': Field(
        -1,
        'channels of the decode head; -1 here and below: as released',
        at_least=-1,
    ),
    'segmenter.neck_channels': Field(
        -1, "channels of the feature pyramid of 'fpn'", at_least=-1
    ),
    'segmenter.auxiliary_channels': Field(
        -1, 'channels of the auxiliary head; 0: no such head', at_least=-1
    ),
    'segmenter.auxiliary_weight': Field(
        0.4, "weight of the auxiliary head's loss"
    ),
    'segmenter.mean_over': Field(
        'labelled', 'pixels over which the loss is averaged', choices=_MEANS
    ),
    'data.name': Field('cifar10', 'data set'),
    'data.dir': _free('', "folder of the data sets; '': $TFDS_DATA_DIR"),
    'data.train_split': Field('train[:45000]', 'images for training'),
    'data.val_split': Field(
        'train[45000:]', 'images for validation, which selects the best epoch'
    ),
    'data.test_split': _free('test', 'images for the test after training'),
    'data.image_size': Field(
        0, 'height and width in pixels; 0: as stored', at_most=2048
    ),
    'data.fit_within': Field(
        (0, 0),
        'longest long side and longest short side, in pixels, that images of a '
        'segmenter are resized to fit, keeping aspect ratio; (0, 0): as stored',
        at_most=8192,
    ),
    'data.crop_size': Field(
        (512, 512),
        "height and width of a segmenter's training crops, in pixels",
        at_least=1,
        at_most=4096,
    ),
    'data.train_crop': Field(
        'resize',
        'resize the whole image, or a new random crop in each epoch',
        choices=_CROPS,
    ),
    'data.crop_scale': Field(
        (0.08, 1.0), 'area of a random crop / area of the image', at_most=1
    ),
    'data.crop_ratio': Field((0.75, 4 / 3), 'width / height of a random crop'),
    'data.eval_crop': Field(
        0.0, 'side of the centre crop / side of the image; 0: none', at_most=1
    ),
    'data.repeats': Field(
        1, 'copies of each image in a batch, augmented differently', at_least=1
    ),
    # 'auto' is 'device' up to a tenth of an accelerator's free memory.
    'data.storage': _free(
        'auto',
        "where decoded images are stored; 'decode': nowhere",
        choices=_STORAGES,
    ),
    'data.workers': _free(
        0, 'processes that decode images; 0: threads', at_most=1024
    ),
    # Free, because RUN/data.json identifies the maps themselves.
    'data.label_maps': _free('', 'folder of token-label maps'),
    'augment.crop_padding': Field(
        4,
        'pixels of zeros added on each side before the random crop',
        at_most=4096,
    ),
    'augment.flip': Field(True, 'mirror half of the images left to right'),
    'augment.resize': Field(
        (0.5, 2.0),
        "factor by which a segmenter's images are resized before the crop",
    ),
    'augment.max_class_share': Field(
        0.75,
        "limit on one class's share of a crop's labelled pixels, dropped after "
        'ten tries',
        at_most=1,
    ),
    'augment.photometric': Field(
        False, 'distort brightness, contrast, saturation and hue'
    ),
    'augment.rand_augment_set': Field(
        'timm', 'library whose RandAugment is used', choices=_OP_SETS
    ),
    'augment.rand_augment_ops': Field(2, 'operations per image; 0: none'),
    'augment.rand_augment_magnitude': Field(
        9.0, 'mean magnitude: 0 to 10, with torchvision 0 to 30', at_most=30
    ),
    'augment.rand_augment_std': Field(
        0.5, 'standard deviation of the magnitude'
    ),
    'augment.rand_augment_prob': Field(
        0.5, 'probability that a drawn operation is applied', at_most=1
    ),
    'augment.erase_prob': Field(
        0.25, 'probability of Random Erasing', at_most=1
    ),
    'augment.erase_area': Field(
        (0.02, 1 / 3), 'erased area / area of the image', at_most=1
    ),
    'augment.erase_aspect': Field(
        (0.3, 1 / 0.3), 'height / width of the erased box'
    ),
    'augment.erase_fill': Field(
        'noise', 'what fills the erased box', choices=('noise', 'zeros')
    ),
    'augment.mixup_alpha': Field(0.8, 'Mixup draws Beta(a, a); 0: no Mixup'),
    'augment.cutmix_alpha': Field(1.0, 'CutMix draws Beta(a, a); 0: no CutMix'),
    'augment.mix_prob': Field(
        1.0, 'share of batches that are mixed', at_most=1
    ),
    'augment.mix_off_epochs': Field(0, 'number of last epochs without mixing'),
    'label_smoothing': Field(
        0.1, 'share of the target that is spread over all classes', at_most=1
    ),
    'token_label_weight': Field(0.0, 'weight of the token-label loss; 0: none'),
    'optimizer.learning_rate': Field(1e-4, 'peak learning rate of AdamW'),
    'optimizer.schedule': Field(
        'cosine',
        "cosine decay, set every step ('cosine') or every epoch as in RMT "
        "('epochs'), or polynomial decay ('poly')",
        choices=_SCHEDULES,
    ),
    'optimizer.power': Field(1.0, "exponent of 'poly'"),
    'optimizer.warmup_epochs': Field(5.0, 'epochs of linear warm-up'),
    'optimizer.warmup_steps': Field(
        0, 'steps of linear warm-up, instead of warmup_epochs'
    ),
    'optimizer.warmup_learning_rate': Field(
        0.0, 'learning rate at the start of the warm-up'
    ),
    'optimizer.final_learning_rate': Field(
        0.0, 'learning rate at the end of the schedule'
    ),
    'optimizer.weight_decay': Field(0.05, 'weight decay'),
    'optimizer.decay': Field(
        'kernels',
        'what weight decay applies to: kernels, all parameters, or all without '
        "'norm' in their released name; never to decay logits",
        choices=_DECAYS,
    ),
    'optimizer.decay_layer_scale': Field(
        False, 'apply weight decay to LayerScale, too'
    ),
    'optimizer.b1': Field(0.9, 'decay of the first moment of AdamW', below=1),
    'optimizer.b2': Field(
        0.999, 'decay of the second moment of AdamW', below=1
    ),
    'optimizer.eps': Field(1e-8, 'added to the denominator of the update'),
}
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
# Values that turn off what segmenters do not support; others are refused.
_OFF_FOR_SEGMENTERS = {
    'label_smoothing': 0.0,
    'token_label_weight': 0.0,
    'data.image_size': 0,
    'data.train_crop': 'resize',
    'data.eval_crop': 0.0,
    'data.storage': 'decode',
    'augment.crop_padding': 0,
    'augment.rand_augment_ops': 0,
    'augment.erase_prob': 0.0,
    'augment.mixup_alpha': 0.0,
    'augment.cutmix_alpha': 0.0,
}
# Fields that only segmenters use, in addition to the group `segmenter`.
_OF_SEGMENTERS = (
    'data.fit_within',
    'data.crop_size',
    'augment.resize',
    'augment.max_class_share',
    'augment.photometric',
)
# The first field of each pair must not exceed the second.
_AT_MOST = {
    'stop_after_epochs': 'num_epochs',
    'augment.mix_off_epochs': 'num_epochs',
    'optimizer.warmup_learning_rate': 'optimizer.learning_rate',
    'optimizer.final_learning_rate': 'optimizer.learning_rate',
}


def free_fields() -> frozenset[str]:
  """Returns the fields that may change when a run resumes."""
  free = {path for path, declared in FIELDS.items() if declared.free}
  return frozenset({*free, *_retired()})


def _retired():
  """Returns fields of earlier versions, which affected at most rounding."""
  # Imported here, so that listing recipes and `--help` need not wait for JAX.
  from gswinrmt_jax.models import factory

  of_models = (f'model.{name}' for name in factory.RETIRED)
  return ('steps_per_dispatch', 'mesh.fsdp', *of_models)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks all fields of a config except the model's, which `resolve` checks.

  Raises:
    UserError: If a field is missing or out of range, or two contradict each
      other; the message names the field.
  """
  for path, declared in FIELDS.items():
    fields, name = _group(config, path)
    if not isinstance(fields, (dict, ml_collections.ConfigDict)):
      section = path.partition('.')[0]
      raise UserError(f'config.{section} must be a group of fields')
    if name not in fields:
      raise UserError(f'config.{path} is missing')
    _refuse(path, fields[name], declared.wanted(fields[name]))
  for name, value in config.model.items():
    group = isinstance(value, ml_collections.ConfigDict)
    if group or len(repr(value)) > _LONGEST:
      _refuse(f'model.{name}', value, 'one value, not too long')
  _check_together(config)


def _check_together(config):
  """Refuses values that contradict each other."""
  data = config.data
  for path, other in _AT_MOST.items():
    value, most = (
        fields[name]
        for fields, name in (_group(config, path), _group(config, other))
    )
    if value > most and not (other == 'num_epochs' and config.num_steps):
      _refuse(path, value, f'at most config.{other}, {most}')
  if bool(config.num_epochs) == bool(config.num_steps):
    raise UserError(
        f'config.num_epochs is {config.num_epochs} and config.num_steps '
        f'{config.num_steps}: one of them must be 0, the other not'
    )
  if not re.fullmatch(r'(\d+:\d+)?', config.profile_steps, re.ASCII):
    wanted = 'FIRST:LAST, two numbers of steps'
    _refuse('profile_steps', config.profile_steps, wanted)
  # Bounds `image_size / eval_crop`, the size that images are resized to.
  if 0 < data.eval_crop < 0.1:
    _refuse('data.eval_crop', data.eval_crop, '0, or from 0.1 to 1')
  longer, shorter = data.fit_within
  if longer < shorter or bool(longer) != bool(shorter):
    _refuse(
        'data.fit_within',
        data.fit_within,
        'two numbers above 0, or (0, 0), the longer side first',
    )
  if data.eval_crop and not data.image_size:
    raise UserError('config.data.eval_crop needs config.data.image_size')
  drawn = data.train_crop == 'random_resized'
  if drawn and (data.storage != 'decode' or not data.image_size):
    raise UserError(
        'config.data.train_crop=random_resized needs config.data.storage='
        'decode and config.data.image_size'
    )
  # In smaller batches, Mixup could pair copies of the same image.
  most = max(1, config.batch_size // 3)
  if data.repeats > most:
    third = f'a third of config.batch_size, {config.batch_size}'
    _refuse('data.repeats', data.repeats, f'from 1 to {third}')
  _check_rand_augment(config.augment)
  _check_optimizer(config.optimizer)
  _check_task(config)
  weight, maps = config.token_label_weight, data.label_maps
  if bool(weight) != bool(maps):
    raise UserError(
        f'config.token_label_weight is {weight} and config.data.label_maps '
        f"'{maps}': token labels need both, other training neither"
    )


def _check_rand_augment(augment):
  """Refuses settings that the set of operations does not support."""
  if not augment.rand_augment_ops:
    return
  magnitude = augment.rand_augment_magnitude
  if augment.rand_augment_set == 'timm':
    wanted = {'magnitude': '' if magnitude <= 10 else 'from 0 to 10'}
  else:
    wanted = {
        'magnitude': '' if magnitude % 1 == 0 else 'a whole number',
        'std': '0' * (augment.rand_augment_std != 0),
        'prob': '1' * (augment.rand_augment_prob != 1),
    }
  for name, value in wanted.items():
    said = f"{value} with the operations of '{augment.rand_augment_set}'"
    name = f'rand_augment_{name}'
    _refuse(f'augment.{name}', augment[name], value and said)


def _check_optimizer(optimizer):
  """Refuses settings that contradict each other."""
  if optimizer.warmup_steps and optimizer.warmup_epochs:
    raise UserError(
        f'config.optimizer.warmup_steps is {optimizer.warmup_steps} and '
        f'config.optimizer.warmup_epochs {optimizer.warmup_epochs:g}: one of '
        'them must be 0'
    )
  if optimizer.warmup_steps and optimizer.schedule == 'epochs':
    _refuse(
        'optimizer.warmup_steps',
        optimizer.warmup_steps,
        "0 with config.optimizer.schedule='epochs'",
    )
  if optimizer.decay_layer_scale and optimizer.decay != 'kernels':
    _refuse(
        'optimizer.decay', optimizer.decay, "'kernels' with decay_layer_scale"
    )


def _check_task(config):
  """Refuses classifier settings for a segmenter, and vice versa."""
  if config.segmenter.head:
    wanted = {
        path: (off, 'for a segmenter')
        for path, off in _OFF_FOR_SEGMENTERS.items()
    }
  else:
    wanted = {
        path: (field.default, 'without config.segmenter.head')
        for path, field in FIELDS.items()
        if path.startswith('segmenter.') or path in _OF_SEGMENTERS
    }
  for path, (value, when) in wanted.items():
    fields, name = _group(config, path)
    if fields[name] != value:
      _refuse(path, fields[name], f'{value!r} {when}')
  if (
      config.segmenter.head
      and config.accumulate_steps > 1
      and config.segmenter.mean_over != 'all'
  ):
    _refuse(
        'accumulate_steps',
        config.accumulate_steps,
        "1 unless config.segmenter.mean_over='all': parts of a batch have "
        'different numbers of labelled pixels',
    )


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns a copy in which every field of the model has its value.

  The copy is stored in the run folder, so that a run keeps its model if a later
  version changes a default.

  Raises:
    UserError: As in `check`, or if the model or one of its fields is unknown.
  """
  check(config)
  resolved = ml_collections.ConfigDict(config.to_dict())
  if config.segmenter.head:
    resolved.segmenter.update(segmenter_fields(config))
  resolved.model = model_fields(config)
  return resolved.lock()


def model_fields(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the name of the model and the value of each of its fields.

  Args:
    config: A config, whose other fields may be invalid.

  Raises:
    UserError: If the model or one of its fields is unknown, or a segmenter has
      no such field.
  """
  from gswinrmt_jax.models import factory

  overrides = dict(config.model)
  name = overrides.pop('name')
  if config.segmenter.head and overrides.get('feature_norm') is None:
    overrides['feature_norm'] = True  # as in `create_segmenter`
  try:
    fields, named = (factory.resolve(name, x) for x in (overrides, {}))
  except ValueError as error:
    raise UserError(f'config.model: {error}') from error
  for field in ('head', 'dense_head'):  # A segmenter has its own head.
    if config.segmenter.head and fields[field] != named[field]:
      _refuse(
          f'model.{field}', fields[field], f'{named[field]!r} for a segmenter'
      )
  return {'name': name, **fields}


def task(config: ml_collections.ConfigDict) -> str:
  """Returns 'segmentation' or 'classification'."""
  return 'segmentation' if config.segmenter.head else 'classification'


def segmenter_fields(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the arguments of `create_segmenter` that define the head.

  Args:
    config: A checked config with a decode head.
  """
  from gswinrmt_jax.models.dense import segmenter

  released = segmenter.HEADS[config.segmenter.head]
  wanted = {name: config.segmenter[name] for name in released}
  return {'head': config.segmenter.head} | {
      name: released[name] if width < 0 else width
      for name, width in wanted.items()
  }


def make_model(
    config: ml_collections.ConfigDict,
    num_classes: int,
    image_shape: tuple[int, int, int],
) -> Any:
  """Returns the model of a resolved config, checked for images of this shape.

  Raises:
    UserError: If the model cannot be built, or not for such images.
  """
  from gswinrmt_jax.models import factory
  from gswinrmt_jax.models.dense import segmenter

  fields, create = dict(config.model), factory.create_model
  name = fields.pop('name')
  if config.segmenter.head:
    create = segmenter.create_segmenter
    del fields['head']  # the classification head
    fields |= segmenter_fields(config)
  try:
    model = create(
        name,
        num_classes=num_classes,
        dtype=config.dtype,
        remat=config.remat,
        **fields,
    )
    factory.variable_shapes(model, image_shape)
  except ValueError as error:
    raise UserError(f'config.model, {name}: {error}') from error
  return model


def implementations(
    config: ml_collections.ConfigDict,
) -> contextlib.AbstractContextManager[None]:
  """Returns the context in which a run's model is traced.

  It applies `attention_impl` and `depthwise_impl` to training, evaluation,
  prediction and export. 'auto' keeps the choice of an enclosing
  `ops.implementations`.
  """
  from gswinrmt_jax import ops

  named = {name: config[f'{name}_impl'] for name in ops.CHOICES}
  return ops.implementations(
      **{name: None if impl == 'auto' else impl for name, impl in named.items()}
  )


def from_json(fields: Any, where: str) -> ml_collections.ConfigDict:
  """Returns the resolved config of a `config.json`, also of earlier versions.

  Args:
    fields: Content of the file.
    where: Name of the file, for messages.

  Raises:
    UserError: If it is not a config, or not one that this version supports.
  """
  sections = {path.partition('.')[0] for path in FIELDS if '.' in path}
  if not isinstance(fields, dict) or not all(
      isinstance(fields.get(name, {}), dict) for name in sections
  ):
    raise UserError(f'{where} is not the recipe of a run')
  for section, name in (('model', 'name'), ('data', 'name')):
    if not isinstance(fields.get(section, {}).get(name), str):
      raise UserError(
          f'{where} is not the recipe of a run: it names no {section}'
      )
  # JSON has no tuples, and a model with a list as a field is not hashable.
  fields = {**{name: {} for name in sections}, **_tuples(fields)}
  for path, declared in FIELDS.items():
    group, name = _group(fields, path)
    group.setdefault(name, declared.default)
  for path in _retired():
    group, name = _group(fields, path)
    group.pop(name, None)
  try:
    return resolve(ml_collections.ConfigDict(fields))
  except UserError as error:
    raise UserError(f'{where}: {error}') from error
  except (ValueError, TypeError, AttributeError) as error:  # names of fields
    raise UserError(f'{where} is not the recipe of a run: {error}') from error


def _group(config, path):
  """Returns the group that contains a field, and the field's name in it."""
  section, _, name = path.rpartition('.')
  return config.get(section, {}) if section else config, name


def _refuse(path, value, wanted):
  """Raises an error saying what a field must be, unless `wanted` is empty."""
  if wanted:
    shown = ' '.join(repr(value).split())  # the repr of a group has many lines
    shown = shown if len(shown) < 80 else f'{shown[:80]} ...'
    raise UserError(f'config.{path} is {shown}: must be {wanted}')


def _is_number(value, kind):
  kinds = (int, float) if kind is float else int
  number = isinstance(value, kinds) and not isinstance(value, bool)
  return number and not (kind is float and abs(value) > _LARGEST[float])


def _is_text(value):
  """Returns whether the value could be a file name."""
  if not isinstance(value, str) or len(value) > _LONGEST or '\0' in value:
    return False
  try:
    os.fsencode(value)
  except UnicodeEncodeError:
    return False
  return True


def _tuples(value):
  if isinstance(value, Mapping):
    return {name: _tuples(inner) for name, inner in value.items()}
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


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
  for path in {path for fields in _READINGS.values() for path in fields}:
    fields, name = _group(config, path)
    default = FIELDS[path].default if path in FIELDS else None  # the model's
    fields[name] = _READINGS[reading].get(path, default)


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
    fields, name = _group(config, path)
    fields[name] = declared.default
  config.model.name = model_name
  for name, kind in factory.FIELDS.items():
    config.model[name] = config_dict.placeholder(kind)
  # Locked, so that a recipe cannot set unknown fields.
  return config.lock()


def digits(model_name: str) -> ml_collections.ConfigDict:
  """Returns a short recipe for a named model on the packaged 8x8 digits.

  The model is narrowed. Because training is short, regularisation that slows it
  down (drop path, label smoothing, mixing) is off. The only augmentation is a
  shift by up to one of the 8x8 pixels: a mirrored digit is not a digit.
  """
  config = defaults(model_name)
  config.dtype = 'float32'
  config.batch_size = 64
  config.eval_batch_size = 100
  config.num_epochs = 12
  config.log_every_steps = 10
  _shrink(config, widths=(16, 32, 48, 64), depths=(1, 1, 2, 1))
  config.model.drop_path_rate = 0.0

  config.data.name = 'digits'
  config.data.train_split = 'train'
  config.data.val_split = 'val'
  config.data.test_split = 'test'

  config.augment.crop_padding = 4
  config.augment.flip = False
  config.augment.rand_augment_ops = 0
  config.augment.erase_prob = 0.0
  config.augment.mixup_alpha = 0.0
  config.augment.cutmix_alpha = 0.0
  config.label_smoothing = 0.0

  config.optimizer.learning_rate = 3e-3
  config.optimizer.warmup_epochs = 1.0
  return config


def mini_imagenet(model_name: str) -> ml_collections.ConfigDict:
  """Returns the Mini-ImageNet protocol of Table 2, in the default reading.

  Args:
    model_name: A named model, in the paper one of the large models.
  """
  config = cifar10(model_name)
  config.num_epochs = 40
  config.eval_batch_size = 250
  config.data.name = 'mini_imagenet'  # as written by `gswinrmt prepare`
  config.data.train_split = 'train'
  config.data.val_split = 'val'
  config.data.test_split = 'test'
  config.data.image_size = 224  # the whole image, resized (section 4.1)
  config.data.storage = 'disk'  # 7.5 GB, decoded once for all runs
  config.augment.crop_padding = 0
  return config


def segmentation(model_name: str, head: str) -> ml_collections.ConfigDict:
  """Returns the defaults of segmenters, with unsupported features off.

  Args:
    model_name: The backbone, a named model.
    head: Its decode head, 'fpn' or 'uper'.
  """
  config = defaults(model_name)
  for path, value in _OFF_FOR_SEGMENTERS.items():
    fields, name = _group(config, path)
    fields[name] = value
  config.segmenter.head = head
  config.data.train_split = 'train'
  config.data.val_split = 'val'
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
    ValueError: If the argument does not begin with one of the models.
  """
  model, _, rest = (argument or default).partition(',')
  if default and model == 'smoke':
    model, rest = default, model
  if model not in models:
    raise ValueError(
        f"the model '{model}' is unknown: name one of {', '.join(models)} "
        f'after the colon, such as NAME:{models[0]}'
    )
  return model, rest or None


def with_argument(
    config: ml_collections.ConfigDict,
    argument: str | None,
    *,
    table2: bool = False,
) -> ml_collections.ConfigDict:
  """Applies the argument after the colon of `--config=FILE:ARGUMENT`.

  Args:
    config: A full recipe.
    argument: None for the recipe itself; 'smoke' for a check that everything
      runs, which takes about 40 seconds of one CPU core: one epoch of the
      model, narrowed, on the packaged digits (segmenters: on their pixels),
      with the recipe's augmentation and precision and quick compilation. A
      recipe of Table 2 also takes a reading, as in `set_reading`, and
      'READING,smoke'.
    table2: Whether the recipe belongs to Table 2.

  Returns:
    The recipe to run.

  Raises:
    ValueError: If the argument is unknown.
  """
  if table2 and argument:
    reading, _, rest = argument.partition(',')
    if reading in _READINGS:
      set_reading(config, reading)
      argument = rest or None
  if argument is None:
    return config
  if argument != 'smoke':
    names = ('smoke', *_READINGS) if table2 else ('smoke',)
    known = ', '.join(f"'{name}'" for name in names)
    raise ValueError(f"unknown argument '{argument}' (known: {known})")
  small = digits(config.model.name)
  if config.segmenter.head:
    small.data.update(name='digit_masks', storage='decode', crop_size=(32, 32))
    for name in ('channels', 'neck_channels', 'auxiliary_channels'):
      released = segmenter_fields(config)[name]
      config.segmenter[name] = min(16, released)
  config.data = small.data
  for name in ('batch_size', 'eval_batch_size', 'log_every_steps'):
    config[name] = small[name]
  config.num_epochs, config.num_steps = 1, 0
  config.compile_effort = 'quick'  # most of the time is compilation
  config.token_label_weight = 0.0  # the digits have no label maps
  config.augment.mix_off_epochs = 0  # the only epoch is mixed
  config.optimizer.warmup_epochs = 0.25
  config.optimizer.warmup_steps = 0
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
