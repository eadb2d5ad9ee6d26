"""Evaluates weights on a split: those of a run, or others."""

import pathlib
import re
from typing import Any

import jax

from gswinrmt_jax import files
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets
from gswinrmt_jax.distributed import compilation
from gswinrmt_jax.distributed import mesh as devices_lib
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import hub
from gswinrmt_jax.weights import load as weights_lib

# If no run says one.
_BATCH_SIZES = {'classification': 100, 'segmentation': 8}


def evaluate_run(
    source: pathlib.Path,
    *,
    step: int | str = 'best',
    which: str | None = None,
    data: str | None = None,
    split: str = 'test',
    image_size: int | None = None,
    batch_size: int | None = None,
    data_dir: str | None = None,
    out: pathlib.Path | None = None,
    terminal: Terminal | None = None,
) -> dict[str, Any]:
  """Evaluates a run's checkpoint, or weights, on any number of devices.

  Args:
    source: A run folder, or weights as `weights.load` takes them.
    step: Of a run: 'best', 'latest' or a step.
    which: Of a run: 'raw', 'ema', or None for the better of the two.
    data: The data set; None takes the run's.
    split: 'train', 'val' or 'test' as the run has them, or a split of the data
      set.
    image_size: Height and width to bring images to; None takes the card's.
      Above the card's no margin is cut off. Of a segmenter see
      `Weights.fit_within`.
    batch_size: Images at a time; None takes the run's.
    data_dir: Where the data are; None takes the run's.
    out: JSON file to write; None names it, see below.
    terminal: Where the table goes.

  Returns:
    What was written: to `evaluation_SPLIT_STEP.json` in the run folder, with
    the data's name before the split if it is not the run's, with `_ema` after
    the step for the average, with `_Npx` at the end at another image size. Of
    other weights to the current folder, with their name and the data's before
    the split: an exported folder stays as it was.

  Raises:
    UserError: If weights or data do not allow it.
  """
  compilation.keep_programs()
  terminal = terminal or Terminal()
  weights = weights_lib.load(
      pathlib.Path(source), step=step, which=which, warn=terminal.say
  )
  recipe = weights.recipe
  name, taken, data_dir = data_of(weights, data, split, data_dir)
  info = datasets.info(name, data_dir)
  if out is None:
    out = _default_path(source, weights, name, split, image_size)
  files.check_can_write(out)
  if weights.task == 'segmentation':
    size = weights.fit_within(image_size)
    pixels = f'within {size[0]} x {size[1]} pixels' if size else 'as stored'
  else:
    size = (image_size, image_size) if image_size else weights.card.image_size
    pixels = f'{size[0]} x {size[1]} pixels'
  own_size = recipe.eval_batch_size if recipe else _BATCH_SIZES[weights.task]
  with weights.implementations():
    scores = _scores(
        weights,
        (name, taken, data_dir),
        size,
        batch_size or own_size,
        terminal,
    )
  report = {
      'source': weights.origin,
      'step': weights.step,
      'epoch': weights.epoch,
      'weights': weights.which,
      'data': name,
      'split': taken,
      'image_size': size and list(size),
      **scores,
      'class_names': list(info.class_names),
  }
  terminal.say(f'{weights.origin}, {name} {taken}, {pixels}')
  table = evaluator.TASKS[weights.task].table
  terminal.say(table(report, info.class_names))
  out.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(out, report)
  terminal.say(f'Written to {out}.')
  return report


def data_of(
    weights: weights_lib.Weights,
    data: str | None,
    split: str,
    data_dir: str | None,
) -> tuple[str, str, str]:
  """Returns data set, split and folder, by the run where nothing is said.

  The data set is prepared if it can be, and has the classes of the weights.
  Arguments are those of `evaluate_run`.

  Raises:
    UserError: If there is no such data set, or it has other classes.
  """
  recipe = weights.recipe
  if recipe is None and data is None:
    raise UserError(
        f'{weights.origin} does not say which data it is for: name them by '
        f'--data={"|".join(datasets.NAMES)}, or a data set that you prepared'
    )
  name = data or recipe.data.name
  if recipe is not None and name == recipe.data.name:
    # A recipe without a test split leaves it to the data to say so.
    split = recipe.data.get(f'{split}_split') or split
    data_dir = recipe.data.dir if data_dir is None else data_dir
  data_dir = data_dir or ''
  weights.check_classes(datasets.info(name, data_dir))
  datasets.ensure(name, data_dir)
  return name, split, data_dir


def _scores(weights, split, size, batch_size, terminal):
  """Goes once through the images of a split: data set, name, folder."""
  card, devices = weights.card, devices_lib.Devices()
  # Each is needed once: there is no use in keeping it.
  if weights.task == 'segmentation':
    records = datasets.load_segmentation(*split, image_size=size)
  else:
    records = datasets.load(
        *split, image_size=size, crop=card.crop_at(size), storage='decode'
    )
  model = weights.make_model(records.image_shape[:2])
  eval_step = evaluator.make_eval_step(model, card.mean, card.std, weights.task)
  batch_size = devices.rounded_up(batch_size)
  scores = evaluator.evaluate(
      compilation.announced(jax.jit(eval_step), 'the evaluation', terminal),
      {'': weights.variables},
      batches_lib.eval_batches(records, batch_size=batch_size),
      devices.put_batch,
      weights.task,
  )
  return scores['']


def _default_path(source, weights, data, split, image_size):
  """Returns the file of a report whose place was not said."""
  if weights.recipe is None:
    source = pathlib.Path(str(source).removeprefix(hub.PREFIX))
    source = source.with_suffix('') if source.is_file() else source
    folder, words = pathlib.Path(), [*source.parts[-2:], data, split]
  else:
    own = data == weights.recipe.data.name
    folder, words = weights.folder, [split] if own else [data, split]
  return folder / _file_name(
      '_'.join(words), weights.step, weights.which, image_size
  )


def _file_name(split, step, which, image_size):
  """Slices differ in where the colon stands, so it stays as `-`."""
  split = split.replace(':', '-').replace('%', 'pct')
  plain = re.sub(r'[^\w.-]+', '_', split).strip('_')
  size = f'_{image_size}px' if image_size else ''
  step = '' if step is None else f'_{step}'
  average = '_ema' if which == 'ema' else ''
  return f'evaluation_{plain}{step}{average}{size}.json'
