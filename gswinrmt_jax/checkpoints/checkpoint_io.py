"""One checkpoint, written and read.

It has two items: `state`, the whole `TrainState`, and `meta`, JSON with the
recipe, the position in the data, the validation accuracy and checksums of the
values. Beside `weights_folder` this is the only file that knows Orbax.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

import jax

from gswinrmt_jax.checkpoints import checkpoint_files, checksums
from gswinrmt_jax.train.train_state import TrainState

_META = 'meta/metadata'  # the file of that item


@dataclasses.dataclass(frozen=True)
class Restored:
  """What was read: `tree` as asked for, `meta` as saved, at which `step`."""

  tree: Any
  meta: dict[str, Any]
  step: int


def fields(state: TrainState) -> dict[str, Any]:
  """Returns a state as a dict, without what it does not keep.

  Checkpoints from before there was an average have no place for a None.
  """
  found = {
      field.name: getattr(state, field.name)
      for field in dataclasses.fields(state)
  }
  return {name: part for name, part in found.items() if part is not None}


def write(
    folder: pathlib.Path, state: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
  """Writes a checkpoint, whole or not at all; waits for no other process.

  Args:
    folder: Where to; not there yet.
    state: `fields` of a state, on the host.
    meta: JSON values.

  Raises:
    Exception: Of any kind, as Orbax and TensorStore do.
  """
  import orbax.checkpoint as ocp

  meta = {**meta, 'crc32': checksums.by_name(state)}
  alone = ocp.options.MultiprocessingOptions(
      primary_host=jax.process_index(),
      active_processes={jax.process_index()},
      barrier_sync_key_prefix='first',
  )
  handler = ocp.CompositeCheckpointHandler(
      state=ocp.PyTreeCheckpointHandler(multiprocessing_options=alone),
      meta=ocp.JsonCheckpointHandler(multiprocessing_options=alone),
      composite_options=ocp.CompositeOptions(multiprocessing_options=alone),
  )
  with ocp.Checkpointer(handler, multiprocessing_options=alone) as writer:
    writer.save(
        checkpoint_files.part(folder),
        args=ocp.args.Composite(
            state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave(meta)
        ),
    )
  checkpoint_files.finish(folder)


def read(folder: pathlib.Path, target: Any) -> Restored:
  """Reads a checkpoint and compares it with its checksums.

  Args:
    folder: Where it is; its name is the step.
    target: Shapes, dtypes and shardings of a `TrainState`, or of some of its
      fields, such as `{'params', 'batch_stats', 'ema'}`.

  Raises:
    Exception: Of any kind, if there is damage.
  """
  import orbax.checkpoint as ocp

  # The values have checksums in there, which has none but its file's.
  damage = checkpoint_files.damage(folder, only=_META)
  if damage:
    raise ValueError(damage[0])
  whole = isinstance(target, TrainState)
  item = fields(target) if whole else target
  arguments = ocp.args.Composite(
      state=ocp.args.PyTreeRestore(
          item=item,
          restore_args=ocp.checkpoint_utils.construct_restore_args(item),
          partial_restore=not whole,
      ),
      meta=ocp.args.JsonRestore(),
  )
  with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
    found = reader.restore(folder, args=arguments)
  differing = checksums.differing(found.meta.get('crc32', {}), found.state)
  if differing:
    more = f' and {len(differing) - 1} more' if differing[1:] else ''
    raise ValueError(f'the checksum of {differing[0]}{more} differs')
  tree = TrainState(**found.state) if whole else found.state
  return Restored(tree=tree, meta=found.meta, step=int(folder.name))


def read_meta(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns what was saved beside a state; None if it cannot be read."""
  try:
    meta = dict(json.loads((folder / _META).read_text()))
    if 'accuracy' not in meta:  # of a version that kept it in another file
      path = folder / 'metrics' / 'metrics'
      meta['accuracy'] = float(json.loads(path.read_text())['accuracy'])
  except (OSError, ValueError, KeyError, TypeError):
    return None
  return meta
