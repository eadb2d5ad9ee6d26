"""Compiles the training step for a GPU that is not here, and counts."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
from typing import Any

import jax

from gswinrmt_jax.benchmark import hlo, programs
from gswinrmt_jax.benchmark.worker import Spec
from gswinrmt_jax.errors import UserError

_OLDEST_JAX = (0, 11)
_PACKAGES = ('jax', 'jaxlib', 'jax-cuda12-pjrt', 'jax-cuda13-pjrt', 'flax')
# Leave out work on machine code: nothing will run, and the counts stay.
_FASTER = {
    'xla_backend_optimization_level': 0,
    'xla_gpu_disable_gpuasm_optimizations': True,
    'xla_llvm_disable_expensive_passes': True,
    'xla_gpu_autotune_level': 0,
}


def count_step(spec: Spec, target: str) -> dict[str, Any]:
  """Compiles a model's training step and counts launches and bytes.

  Args:
    spec: As `programs.training_step` takes it.
    target: The GPU; its figures are in `TARGET.json` here.

  Returns:
    What was compiled, by which versions, and the counts of `hlo.Counts`;
    JSON-serialisable.

  Raises:
    UserError: If JAX or its plugin cannot compile it.
  """
  program = compile_step(spec, target)
  counts = hlo.count(program.as_text())
  versions = {}
  for name in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return {
      **spec,
      'target': target,
      'kernels': counts.kernels.total(),
      'kernels_by_kind': dict(counts.kernels.most_common()),
      'bytes_read': counts.bytes_read,
      'bytes_written': counts.bytes_written,
      'temporary_bytes': program.memory_analysis().temp_size_in_bytes,
      'versions': versions,
  }


def table(found: dict[str, Any]) -> str:
  """Returns the counts as lines for a terminal."""
  kinds = ', '.join(f'{k} {n}' for k, n in found['kernels_by_kind'].items())
  read, written, temporaries = (
      f'{found[name] / 1e9:.3f}'
      for name in ('bytes_read', 'bytes_written', 'temporary_bytes')
  )
  rows = {
      found['model']: (
          f'batch {found["batch"]}, {found["image_size"]} pixels, '
          f'{found["dtype"]}, for {found["target"]}'
      ),
      'kernels': f'{found["kernels"]:,} ({kinds})',
      'GB read, written': f'{read}, {written}',
      'GB temporaries': temporaries,
  }
  return '\n'.join(f'{name:<20}{text}' for name, text in rows.items())


def compile_step(spec: Spec, target: str) -> jax.stages.Compiled:
  """Compiles the step for one such GPU, state donated; see `count_step`."""
  check_installed()
  # Without it the plugin refuses to load where CUDA is missing.
  os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')
  from jax.experimental import topologies

  (chip,) = topologies.get_topology_desc(
      platform='cuda', target_config=target_config(target), topology='1x1x1'
  ).devices
  device = jax.sharding.SingleDeviceSharding(chip)
  _, step, arguments = programs.training_step(spec)
  shapes = jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device),
      arguments,
  )
  lowered = step.trace(*shapes).lower(lowering_platforms=('cuda',))
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

  The figures of `NAME.json` are those of OpenXLA's `target_config/specs`; rates
  are `[element types, [clock in GHz, units per core, operations per clock]]`,
  element types by XLA's numbers.
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
