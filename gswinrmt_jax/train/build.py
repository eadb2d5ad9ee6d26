"""From a recipe to the objects it names."""

from collections.abc import Callable
import functools
import math

from flax import linen as nn
import jax
import ml_collections
import optax

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import datasets
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.train import average, optimizer
from gswinrmt_jax.train.schedule import Plan
from gswinrmt_jax.train.train_step import Augmentation
from gswinrmt_jax.weights import card

_OPTIMIZER_LIMITS = {
    'learning_rate': math.inf,
    'warmup_learning_rate': math.inf,
    'final_learning_rate': math.inf,
    'warmup_epochs': math.inf,
    'weight_decay': math.inf,
    'b1': 1.0,
    'b2': 1.0,
    'eps': math.inf,
}


def make_model(
    config: ml_collections.ConfigDict,
    num_classes: int,
    image_shape: tuple[int, int, int],
) -> nn.Module:
  """Returns the model of a resolved recipe, tried on images of this shape.

  Raises:
    UserError: If the model cannot be built so, or not for such images.
  """
  try:
    model = _create_model(config, num_classes)
    factory.variable_shapes(model, image_shape)
  except ValueError as error:
    raise UserError(f'{config.model.name}: {error}') from error
  return model


def stride(config: ml_collections.ConfigDict) -> int:
  """Returns the stride of the last map of a resolved recipe's model.

  Raises:
    UserError: If the model cannot be built so.
  """
  try:
    return _create_model(config, num_classes=1).arch.stride
  except ValueError as error:
    raise UserError(f'{config.model.name}: {error}') from error


def _create_model(config, num_classes):
  fields = {
      field: value for field, value in config.model.items() if field != 'name'
  }
  for field in ('attention_impl', 'depthwise_impl'):
    if field in factory.FIELDS:  # until they are a context of `ops`
      fields[field] = config[field]
  return factory.create_model(
      config.model.name,
      num_classes=num_classes,
      dtype=config.dtype,
      remat=config.remat,
      **fields,
  )


def make_optimizer(
    config: ml_collections.ConfigDict, plan: Plan
) -> tuple[optax.Schedule, optax.GradientTransformation]:
  """Returns the learning rate by step, and AdamW with it.

  Raises:
    UserError: If a number is out of range, or the warm-up fills the run.
  """
  fields = config.optimizer
  for name, below in _OPTIMIZER_LIMITS.items():
    # Written so that NaN is out of range too.
    if not 0 <= fields[name] < below:
      raise UserError(
          f'config.optimizer.{name} is {fields[name]}: must be at least 0 and '
          f'below {below:g}'
      )
  for name in ('warmup_learning_rate', 'final_learning_rate'):
    if fields[name] > fields.learning_rate:
      raise UserError(
          f'config.optimizer.{name} is {fields[name]}: must not be above '
          f'config.optimizer.learning_rate, {fields.learning_rate}'
      )
  schedule = _make_schedule(fields, plan)
  tx = optimizer.make_optimizer(
      schedule,
      b1=fields.b1,
      b2=fields.b2,
      eps=fields.eps,
      weight_decay=fields.weight_decay,
      decay_layer_scale=fields.decay_layer_scale,
  )
  return schedule, tx


def _make_schedule(fields, plan):
  """By step, a warm-up ends at step `floor(warmup_epochs n / B)`."""
  rates = {
      'start': fields.warmup_learning_rate,
      'final': fields.final_learning_rate,
  }
  if fields.schedule == 'cosine':
    warmup = fields.warmup_epochs * plan.num_examples / plan.batch_size
    return optimizer.learning_rate_schedule(
        fields.learning_rate,
        warmup_steps=int(warmup),
        total_steps=plan.total_steps,
        **rates,
    )
  if fields.schedule == 'epochs':
    by_epoch = optimizer.epoch_learning_rates(
        fields.learning_rate,
        warmup_epochs=fields.warmup_epochs,
        num_epochs=plan.num_epochs,
        **rates,
    )
    ends = [plan.epoch_end(epoch + 1) for epoch in range(plan.num_epochs)]
    return optimizer.piecewise_schedule(by_epoch, ends)
  raise UserError(
      "config.optimizer.schedule is 'cosine' or 'epochs', not "
      f"'{fields.schedule}'"
  )


def ema_decay(config: ml_collections.ConfigDict) -> float:
  """Returns the decay of the moving average for one step; 0: there is none.

  Raises:
    UserError: If it is out of range.
  """
  if not 0 <= config.ema_decay < 1:
    raise UserError(
        f'config.ema_decay is {config.ema_decay}: must be at least 0 and '
        'below 1'
    )
  return average.step_decay(config.ema_decay, config.batch_size)


def skips_nonfinite(config: ml_collections.ConfigDict) -> bool:
  """Returns whether steps that are not finite are skipped; else they stop.

  Raises:
    UserError: If the recipe says neither.
  """
  if config.nan_policy not in ('stop', 'skip'):
    raise UserError(
        f"config.nan_policy is 'stop' or 'skip', not '{config.nan_policy}'"
    )
  return config.nan_policy == 'skip'


def compiler_options(
    config: ml_collections.ConfigDict,
) -> dict[str, int | bool] | None:
  """Returns what XLA is told about the programs that a run calls often.

  Raises:
    UserError: If the recipe's effort is neither of the two.
  """
  if config.compile_effort not in ('full', 'quick'):
    raise UserError(
        "config.compile_effort is 'full' or 'quick', not "
        f"'{config.compile_effort}'"
    )
  quick = config.compile_effort == 'quick'
  return mesh.quick_compilation() if quick else None


def make_augmentation(
    config: ml_collections.ConfigDict, info: datasets.Info
) -> Augmentation:
  """Returns `(key, batch) -> (image, targets)` of a recipe."""
  settings = augment_settings(config, info)

  def augmentation(key, batch):
    return augment_lib.augment(key, batch['image'], batch['label'], settings)

  return augmentation


def augment_settings(
    config: ml_collections.ConfigDict, info: datasets.Info
) -> augment_lib.Augment:
  """Returns the settings of the augmentation; UserError if out of range."""
  fields = config.augment.to_dict()
  fields.pop('mix_off_epochs')
  return augment_lib.Augment(
      **fields,
      mean=info.mean,
      std=info.std,
      num_classes=len(info.class_names),
      label_smoothing=config.label_smoothing,
  )


def make_normalization(
    info: datasets.Info | card.Card,
) -> Callable[[jax.Array], jax.Array]:
  """Returns what turns uint8 images into the model's input."""
  return functools.partial(augment_lib.normalize, mean=info.mean, std=info.std)
