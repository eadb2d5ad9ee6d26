"""The counts of a compiled step as one record, and as a table."""

import importlib.metadata
from typing import Any

import ml_collections

from gswinrmt_jax.benchmark import compiled, hlo_counts, ideal_bytes

_PACKAGES = ('jax', 'jaxlib', 'jax-cuda12-pjrt', 'jax-cuda13-pjrt', 'flax')


def count_step(
    config: ml_collections.ConfigDict,
    *,
    image_size: int,
    num_classes: int,
    augmented: bool,
    target: str,
) -> dict[str, Any]:
  """Compiles a recipe's step for a GPU and counts; arguments as there.

  Returns:
    What JSON can hold: what was compiled and with which versions, 'kernels'
    and 'bytes' as in `hlo_counts.Counts`, 'ideal_bytes' as in
    `ideal_bytes.Ideal` (None where it was not derived), 'temporary_bytes'.
  """
  step = compiled.compile_step(
      config,
      image_size=image_size,
      num_classes=num_classes,
      augmented=augmented,
      target=target,
  )
  counts = hlo_counts.count(step.text)
  try:
    ideal = ideal_bytes.ideal(step.model, config.batch_size, image_size).total
  except ValueError:
    ideal = None
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
      'kernels': counts.total,
      'kernels_by_kind': dict(counts.kernels.most_common()),
      'kernels_by_phase': dict(counts.phases.most_common()),
      'bytes_read': counts.bytes_read,
      'bytes_written': counts.bytes_written,
      'bytes': counts.num_bytes,
      'ideal_bytes': ideal,
      'bytes_over_ideal': ideal and round(counts.num_bytes / ideal, 3),
      'temporary_bytes': step.temporaries,
      'argument_bytes': step.arguments,
      'collectives': dict(counts.collectives),
      'loops_of_unknown_length': counts.unknown_loops,
      'versions': _versions(),
  }


def table(found: dict[str, Any]) -> str:
  """Returns the record as lines for a terminal."""
  by_kind, by_phase = (
      ', '.join(f'{name} {number}' for name, number in found[key].items())
      for key in ('kernels_by_kind', 'kernels_by_phase')
  )
  augmented = ', augmented' if found['augmented'] else ''
  rows = [
      (
          found['model'],
          f'batch {found["batch_size"]}, {found["image_size"]} pixels, '
          f'{found["dtype"]}{augmented}, for {found["target"]}',
      ),
      ('kernels', f'{found["kernels"]:,} ({by_kind})'),
      ('of which', by_phase),
      ('GB read, written', _pair(found['bytes_read'], found['bytes_written'])),
  ]
  if found['ideal_bytes']:
    ratio = f'{found["bytes_over_ideal"]:.2f} of the ideal'
    ideal = found['ideal_bytes'] / 1e9
    rows.append(('GB', f'{found["bytes"] / 1e9:.3f}, {ratio} {ideal:.3f}'))
  rows.append(('GB temporaries', f'{found["temporary_bytes"] / 1e9:.3f}'))
  if found['collectives']:
    rows.append(('collectives', str(found['collectives'])))
  return '\n'.join(f'{name:<20}{text}' for name, text in rows)


def _pair(read, written):
  return f'{read / 1e9:.3f}, {written / 1e9:.3f}'


def _versions():
  installed = {}
  for name in _PACKAGES:
    try:
      installed[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return installed
