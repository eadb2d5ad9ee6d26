"""Compiles the training step for a GPU that is not here, and counts."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
from typing import Any

import jax
import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.benchmark import hlo
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import losses, optimizer
from gswinrmt_jax.train import schedule as schedule_lib
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

TARGETS = ('h200',)  # each has its figures in a JSON file here
_OLDEST_JAX = (0, 11)
_PACKAGES = ('jax', 'jaxlib', 'jax-cuda12-pjrt', 'jax-cuda13-pjrt', 'flax')
# Leave out work on machine code: nothing will run, and the counts stay.
_FASTER = {
    'xla_backend_optimization_level': 0,
    'xla_gpu_disable_gpuasm_optimizations': True,
    'xla_llvm_disable_expensive_passes': True,
    'xla_gpu_autotune_level': 0,
}
_NUM_EXAMPLES = 50000  # in an epoch; sets constants of the schedule


def count_step(
    config: ml_collections.ConfigDict,
    *,
    image_size: int,
    num_classes: int,
    augmented: bool,
    target: str,
) -> dict[str, Any]:
  """Compiles a recipe's training step and counts launches and bytes.

  Args:
    config: A recipe, resolved or not: model, optimizer, dtype, batch, EMA.
    image_size: Height and width of the images, uint8.
    num_classes: Number of logits.
    augmented: Whether the step includes the recipe's augmentation; otherwise
      it normalises images and smooths labels.
    target: One of `TARGETS`.

  Returns:
    What was compiled, by which versions, and the counts of `hlo.Counts`;
    JSON-serialisable.

  Raises:
    UserError: If JAX or its plugin cannot compile it, or the recipe is wrong.
  """
  program = compile_step(
      config,
      image_size=image_size,
      num_classes=num_classes,
      augmented=augmented,
      target=target,
  )
  counts = hlo.count(program.as_text())
  memory = program.memory_analysis()
  return {
      'model': config.model.name,
      'fields': {
          name: value
          for name, value in config.model.items()
          if name != 'name' and value is not None
      },
      'target': target,
      'batch_size': config.batch_size,
      'image_size': image_size,
      'num_classes': num_classes,
      'dtype': config.dtype,
      'augmented': augmented,
      'kernels': counts.kernels.total(),
      'kernels_by_kind': dict(counts.kernels.most_common()),
      'kernels_by_phase': dict(counts.phases.most_common()),
      'bytes_read': counts.bytes_read,
      'bytes_written': counts.bytes_written,
      'bytes': counts.bytes_read + counts.bytes_written,
      'temporary_bytes': memory.temp_size_in_bytes,
      'argument_bytes': memory.argument_size_in_bytes,
      'collectives': dict(counts.collectives),
      'loops_of_unknown_length': counts.unknown_loops,
      'versions': _versions(),
  }


def _versions():
  installed = {}
  for name in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      installed[name] = importlib.metadata.version(name)
  return installed


def table(found: dict[str, Any]) -> str:
  """Returns the counts as lines for a terminal."""
  by_kind, by_phase = (
      ', '.join(f'{name} {number}' for name, number in found[key].items())
      for key in ('kernels_by_kind', 'kernels_by_phase')
  )
  read, written, both, temporaries = (
      f'{found[name] / 1e9:.3f}'
      for name in ('bytes_read', 'bytes_written', 'bytes', 'temporary_bytes')
  )
  augmented = ', augmented' if found['augmented'] else ''
  rows = {
      found['model']: (
          f'batch {found["batch_size"]}, {found["image_size"]} pixels, '
          f'{found["dtype"]}{augmented}, for {found["target"]}'
      ),
      'kernels': f'{found["kernels"]:,} ({by_kind})',
      'of which': by_phase,
      'GB read, written': f'{read}, {written}; together {both}',
      'GB temporaries': temporaries,
  }
  if found['collectives']:
    rows['collectives'] = str(found['collectives'])
  return '\n'.join(f'{name:<20}{text}' for name, text in rows.items())


def compile_step(
    config: ml_collections.ConfigDict,
    *,
    image_size: int,
    num_classes: int,
    augmented: bool,
    target: str = 'h200',
) -> jax.stages.Compiled:
  """Compiles the step for one such GPU, state donated; see `count_step`."""
  check_installed()
  # Without it the plugin refuses to load where CUDA is missing.
  os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')
  from jax.experimental import topologies

  (chip,) = topologies.get_topology_desc(
      platform='cuda', target_config=target_config(target), topology='1x1x1'
  ).devices
  device = jax.sharding.SingleDeviceSharding(chip)
  step, arguments = training_step(
      config,
      image_size=image_size,
      num_classes=num_classes,
      augmented=augmented,
  )
  arguments = jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device),
      arguments,
  )
  traced = jax.jit(step, donate_argnums=0).trace(*arguments)
  lowered = traced.lower(lowering_platforms=('cuda',))
  return lowered.compile(compiler_options=_FASTER)


def check_installed() -> None:
  """Checks that this JAX can compile for a GPU without one.

  Raises:
    UserError: If it is too old or has no CUDA plugin.
  """
  version = jax.__version__
  if jax.__version_info__ < _OLDEST_JAX:
    raise UserError(
        'compiling for a GPU that is not here needs jax 0.11 or later (Python '
        f'3.12), not {version}: pip install -U jax'
    )
  plugins = ('jax_plugins.xla_cuda12', 'jax_plugins.xla_cuda13')
  find = importlib.util.find_spec
  if not find('jax_plugins') or not any(map(find, plugins)):
    raise UserError(
        "compiling for a GPU that is not here needs JAX's CUDA plugin, without "
        f'the CUDA libraries: pip install --no-deps '
        f'jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version}'
    )


def target_config(name: str) -> str:
  """Returns a `stream_executor.GpuTargetConfigProto` in text form.

  Args:
    name: One of `TARGETS`. Its figures are those of OpenXLA's
      `target_config/specs`; rates are `[element types, [clock in GHz, units
      per core, operations per clock]]`, element types by XLA's numbers.
  """
  path = pathlib.Path(__file__).with_name(f'{name}.json')
  figures = json.loads(path.read_text())
  fields = [f'{key}: {value}' for key, value in figures['numbers'].items()]
  fields += [f'{key}: "{value}"' for key, value in figures['texts'].items()]
  for unit in ('scalar', 'matrix'):
    rates = ' '.join(
        f'rate_infos {{ key: {key} value {{ clock_rate_ghz: {clock} '
        f'units_per_core: {units} ops_per_clock: {operations} }} }}'
        for keys, (clock, units, operations) in figures[f'{unit}_rates']
        for key in keys
    )
    fields.append(f'{unit}_unit_description {{ {rates} }}')
  return (
      f'gpu_device_info {{ {" ".join(fields)} ecc_enabled: true '
      'cuda_compute_capability { major: 9 feature_extension: '
      'ACCELERATED_FEATURES } device_interconnect_info { active_links: 18 } } '
      'platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } '
      f'device_description_str: "{figures["texts"]["name"]}"'
  )


def training_step(
    config: ml_collections.ConfigDict,
    *,
    image_size: int,
    num_classes: int,
    augmented: bool,
) -> tuple[step_lib.TrainStep, tuple[Any, Any, Any]]:
  """Returns a recipe's step and the shapes of its arguments.

  The arguments are those of `count_step`.
  """
  config = recipes.resolve(config)
  shape = (image_size, image_size, 3)
  info = datasets.Info(
      'shapes', tuple(map(str, range(num_classes))), (0.5,) * 3, (0.25,) * 3
  )
  model = recipes.make_model(config, num_classes, shape)
  schedule = schedule_lib.from_config(
      config, max(_NUM_EXAMPLES, config.batch_size)
  )
  _, tx = optimizer.from_config(config, schedule)
  augmentation, _ = losses.augmentation_and_loss(
      config, info, schedule, stride=1
  )
  ema_decay = state_lib.ema_decay_per_step(config.ema_decay, config.batch_size)
  step = step_lib.make_train_step(
      model,
      tx,
      augmentation if augmented else _normalization_alone(config, info),
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
  return step, (jax.eval_shape(create, key), batch, key)


def _normalization_alone(config, info):
  normalize = functools.partial(
      augment_lib.normalize, mean=info.mean, std=info.std
  )
  classes, smoothing = len(info.class_names), config.label_smoothing

  def augment(key, batch):
    del key
    targets = jax.nn.one_hot(batch['label'], classes) * (1 - smoothing)
    return normalize(batch['image']), targets + smoothing / classes

  return augment
