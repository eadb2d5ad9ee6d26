"""The evaluation of a finished run, from its folder alone."""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp

from gswinrmt_jax.data import datasets, pipeline
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import (
    build,
    checkpoint,
    evaluation,
    log,
    metrics,
    run_folder,
)
from gswinrmt_jax.training import devices as devices_lib


def evaluate_run(
    folder: pathlib.Path,
    *,
    step: int | str = 'best',
    split: str = 'test',
    image_size: int | None = None,
    batch_size: int | None = None,
    data_dir: str | None = None,
    terminal: log.Terminal | None = None,
) -> dict[str, Any]:
  """Evaluates the weights of one checkpoint, on any number of devices.

  Args:
    folder: The run folder.
    step: 'best', 'latest' or a step.
    split: 'train', 'val' or 'test' as the run has them, or a split of the data
      set.
    image_size: Height and width to resize to; None keeps the images.
    batch_size: Images at a time; None takes the run's.
    data_dir: Where the data are; None takes the run's.
    terminal: Where the table goes.

  Returns:
    What was written to `evaluation_SPLIT_STEP.json`, with `_Npx` before the
    dot at another image size.

  Raises:
    UserError: If folder, checkpoint or data do not allow it.
  """
  terminal = terminal or log.Terminal()
  config = build.resolve(run_folder.load_config(folder))
  info = datasets.info(config.data.name)
  data_dir = config.data.dir if data_dir is None else data_dir
  datasets.ensure(config.data.name, data_dir)
  own = f'{split}_split'
  name = config.data[own] if own in config.data else split
  data = datasets.load(config.data.name, name, data_dir)
  shape = data.image.shape[1:]
  if image_size:
    shape = (image_size, image_size, 3)
  model = build.make_model(config, len(info.class_names), shape)
  devices = devices_lib.Devices()
  variables = devices.target(
      jax.eval_shape(
          lambda: model.init(
              jax.random.key(0), jnp.zeros((1, *shape)), train=False
          )
      )
  )
  restored = _restore(folder, step, variables, terminal)
  eval_step = jax.jit(
      evaluation.make_eval_step(
          model, build.make_normalization(info), image_size=image_size
      )
  )
  batches = pipeline.eval_batches(
      data, batch_size=batch_size or config.eval_batch_size
  )
  figures = evaluation.evaluate(
      eval_step, restored.tree, batches, devices.put_batch
  )
  report = {
      'step': restored.step,
      'epoch': restored.meta['epoch'],
      'data': config.data.name,
      'split': name,
      'image_size': list(shape[:2]),
      **figures,
      'class_names': list(info.class_names),
  }
  path = folder / _file_name(split, restored.step, image_size)
  run_folder.write_json(path, report)
  terminal.say(
      f'{folder}, step {restored.step} (epoch {restored.meta["epoch"]}), '
      f'{config.data.name} {name}, {shape[0]} x {shape[1]} pixels'
  )
  terminal.say(metrics.table(report, info.class_names))
  terminal.say(f'Written to {path}.')
  return report


def _restore(folder, step, variables, terminal):
  directory = folder / 'checkpoints'
  if not directory.is_dir():
    raise UserError(f'{folder} has no checkpoints yet')
  checkpoints = checkpoint.Checkpoints(
      directory, read_only=True, warn=terminal.say
  )
  if step == 'best':
    restored = checkpoints.restore_best(variables)
  elif step == 'latest':
    restored = checkpoints.restore_latest(variables)
  else:
    restored = checkpoints.restore(step, variables)
  if restored is None:
    raise UserError(f'{folder} has no checkpoints yet')
  return restored


def _file_name(split, step, image_size):
  """Slices differ in where the colon stands, so it stays as `-`."""
  split = split.replace(':', '-').replace('%', 'pct')
  plain = re.sub(r'[^\w.-]+', '_', split).strip('_')
  size = f'_{image_size}px' if image_size else ''
  return f'evaluation_{plain}_{step}{size}.json'
