"""Compiles the training step for a GPU that is not here."""

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import importlib.util
import os
from typing import Any

import jax
import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.benchmark import targets
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.ops import backend
from gswinrmt_jax.train import build
from gswinrmt_jax.train import schedule as plan
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

_LEAST_JAX = (0, 11)
# Leave out work on machine code, none of which changes what is counted: there
# is no device to choose kernels on, and nothing will run.
_FASTER = {
    'xla_backend_optimization_level': 0,
    'xla_gpu_disable_gpuasm_optimizations': True,
    'xla_llvm_disable_expensive_passes': True,
    'xla_gpu_autotune_level': 0,
}
_NUM_EXAMPLES = 50000  # of an epoch; the schedule's constants come from it


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A compiled step.

  Attributes:
    model: What it trains.
    text: The optimised program, as XLA prints it.
    temporaries: Bytes that it takes beside its arguments and results.
    arguments: Bytes of state and batch.
  """

  model: Backbone
  text: str
  temporaries: int
  arguments: int


def check_installed() -> None:
  """Checks that this JAX can compile for a GPU without one.

  Raises:
    UserError: If it is too old or the plugin is not there.
  """
  if jax.__version_info__ < _LEAST_JAX:
    raise UserError(
        'compiling for a GPU that is not here needs jax 0.11 or later (Python '
        f'3.12), not {jax.__version__}: pip install -U jax'
    )
  if not any(
      importlib.util.find_spec('jax_plugins')
      and importlib.util.find_spec(f'jax_plugins.xla_cuda{version}')
      for version in (12, 13)
  ):
    version = jax.__version__
    raise UserError(
        "compiling for a GPU that is not here needs JAX's CUDA plugin, without "
        f'the CUDA libraries: pip install --no-deps '
        f'jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version}'
    )


def compile_step(
    config: ml_collections.ConfigDict,
    *,
    image_size: int,
    num_classes: int,
    augmented: bool,
    target: str = 'h200',
) -> Compiled:
  """Compiles `training.step` as a run on one such GPU would, state donated.

  Args:
    config: A recipe, resolved or not: model, optimiser, dtype, batch, EMA.
    image_size: Height and width of the images, uint8.
    num_classes: Number of logits.
    augmented: Whether the recipe's augmentation is part of the step; else
      images are normalised and labels smoothed there.
    target: A name in `targets.TARGETS`.

  Raises:
    UserError: If JAX or its plugin cannot do that, or the recipe is wrong.
  """
  with tracing_for_target(target) as device:
    model, step, arguments = training_step(
        config,
        image_size=image_size,
        num_classes=num_classes,
        augmented=augmented,
    )
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device),
        arguments,
    )
    lowered = (
        jax.jit(step, donate_argnums=0)
        .trace(*arguments)
        .lower(lowering_platforms=('cuda',))
    )
  program = lowered.compile(compiler_options=_FASTER)
  memory = program.memory_analysis()
  return Compiled(
      model=model,
      text=program.as_text(),
      temporaries=memory.temp_size_in_bytes,
      arguments=memory.argument_size_in_bytes,
  )


@contextlib.contextmanager
def tracing_for_target(target: str) -> Iterator[jax.sharding.Sharding]:
  """What is traced and lowered inside is for such a GPU.

  Args:
    target: A name in `targets.TARGETS`.

  Yields:
    The sharding that arguments are to have.

  Raises:
    UserError: If JAX or its plugin cannot do that.
  """
  check_installed()
  # Else the plugin, once JAX looks for devices, refuses to be there without
  # CUDA's libraries.
  os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')
  from jax.experimental import topologies

  (chip,) = topologies.get_topology_desc(
      platform='cuda',
      target_config=targets.TARGETS[target],
      topology='1x1x1',
  ).devices
  with backend.tracing_for('gpu'):
    yield jax.sharding.SingleDeviceSharding(chip)


def training_step(
    config: ml_collections.ConfigDict,
    *,
    image_size: int,
    num_classes: int,
    augmented: bool,
) -> tuple[Backbone, step_lib.TrainStep, tuple[Any, Any, Any]]:
  """Returns the model, its step, and the shapes that the step takes.

  Args:
    config: As in `compile_step`, and the others.
    image_size: Height and width.
    num_classes: Number of logits.
    augmented: Whether the augmentation is part of the step.
  """
  config = recipes.resolve(config)
  shape = (image_size, image_size, 3)
  info = datasets.Info(
      'shapes', tuple(map(str, range(num_classes))), (0.5,) * 3, (0.25,) * 3
  )
  model = build.make_model(config, num_classes, shape)
  schedule = plan.make_plan(config, max(_NUM_EXAMPLES, config.batch_size))
  _, tx = build.make_optimizer(config, schedule)
  augmentation = build.make_augmentation(config, info)
  if not augmented:
    augmentation = _plain(config, info)
  ema_decay = build.ema_decay(config)
  step = step_lib.make_train_step(
      model,
      tx,
      augmentation,
      ema_decay=ema_decay,
      accumulate_steps=config.accumulate_steps,
  )
  key = jax.eval_shape(lambda: jax.random.key(0))
  create = functools.partial(
      state_lib.create, model, tx, image_shape=shape, ema=bool(ema_decay)
  )
  batch = {
      'image': jax.ShapeDtypeStruct((config.batch_size, *shape), 'uint8'),
      'label': jax.ShapeDtypeStruct((config.batch_size,), 'int32'),
  }
  return model, step, (jax.eval_shape(create, key), batch, key)


def _plain(config, info):
  normalize = build.make_normalization(info)
  classes = len(info.class_names)

  def plain(key, batch):
    del key
    targets = jax.nn.one_hot(batch['label'], classes)
    targets = targets * (1 - config.label_smoothing)
    return normalize(batch['image']), targets + config.label_smoothing / classes

  return plain
