"""Evaluates the weights of a run, or other weights, on a split."""

import os
import pathlib
import re
from typing import Any
import zlib

import jax

from gswinrmt_jax import files
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import (
    class_folders,
    datasets,
    prepared,
    segmentation,
)
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.distributed import compilation
from gswinrmt_jax.distributed import mesh as devices_lib
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.runs import dataset_record
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import hub
from gswinrmt_jax.weights import load as weights_lib

_LONGEST = 150  # bytes of the words in the name of a report
# Defaults for weights that do not come from a run.
_BATCH_SIZES = {'classification': 100, 'segmentation': 8, 'detection': 8}


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
    mirror: bool = False,
    terminal: Terminal | None = None,
) -> dict[str, Any]:
  """Evaluates a run's checkpoint, or weights, on any number of devices.

  Args:
    source: A run folder, or weights as `weights.load` takes them.
    step: Checkpoint of a run: 'best', 'latest' or a step.
    which: Weights of a run: 'raw', 'ema', or None for the better of the two.
    data: The data set; None for the run's.
    split: 'train', 'val' or 'test' as the run defines them, or a split of the
      data set. Without a test split, 'test' takes 'val', and says so.
    image_size: Height and width, in pixels, to resize images to; None for the
      card's. Above the card's size, no margin is cropped. For a segmenter or
      detector, see `Weights.size`.
    batch_size: Images per batch; None for the run's, or a default by task.
    data_dir: Folder of the data; None for the run's.
    out: JSON file to write; None for the default name below.
    mirror: Whether a classifier is evaluated once more, with the mean of its
      logits over each image and its mirror image, for the report's `mirror`.
    terminal: Where the table is printed.

  Returns:
    The report that was written. Its default file for a run is
    `evaluation_SPLIT_STEP.json` in the run folder. The names of the data set
    and its folder precede the split if they are not the run's, `_ema` follows
    the step for the EMA, and a given image size adds `_Npx` at the end. Reports
    on other weights go to the current folder, so that an exported folder stays
    unchanged; the path of the weights and the data set precede the split.

  Raises:
    UserError: If the weights or the data are unsuitable, or logits are not
      finite.
  """
  compilation.keep_programs()
  terminal = terminal or Terminal()
  weights = weights_lib.load(source, step=step, which=which, warn=terminal.say)
  recipe = weights.recipe
  if mirror and weights.task != 'classification':
    raise UserError(f'--mirror is for classifiers, which {source} is not')
  name, split, taken, data_dir = _split(
      weights, data, split, data_dir, terminal.say
  )
  info = datasets.info(name, data_dir)
  if out is None:
    out = report_path(
        'evaluation',
        source,
        weights,
        name,
        split,
        data_dir=data_dir,
        image_size=image_size,
    )
  files.check_can_write(out)
  for line in datasets.describe(name, data_dir):
    terminal.say(line)
  size = weights.size(image_size)
  records = _open_records(weights, name, taken, data_dir, size)
  if (
      recipe
      and name == recipe.data.name
      and dataset_record.is_other(weights.folder, split, taken, records.source)
  ):
    terminal.say(
        f'warning: images or labels of {name} {taken} are not those that the '
        'run was started with'
    )
  weights.warn_of_size(size, terminal.say)
  dense = weights.card.dense or {}
  if dense.get('head') in ('mask', 'cascade') and not records.has_masks:
    terminal.say(f'{name} {taken} has no masks: only boxes are scored')
  own_size = recipe.eval_batch_size if recipe else _BATCH_SIZES[weights.task]
  batch_size = batch_size or own_size
  scores = _scores(weights, records, batch_size, terminal)
  if said := evaluator.not_finite(scores, weights.task):
    raise UserError(f'{weights.origin}: {said}')
  if mirror:
    scores['mirror'] = _scores(weights, records, batch_size, terminal, True)
  report = {
      'source': weights.origin,
      'step': weights.step,
      'epoch': weights.epoch,
      'weights': weights.which,
      'dtype': weights.card.dtype,
      'data': name,
      'split': taken,
      'image_size': size and list(size),
      **scores,
      'class_names': list(info.class_names),
  }
  out.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(out, report)
  terminal.say(_text(report, weights.task))
  terminal.say(f'Written to {out}.')
  return report


def _split(weights, data, split, data_dir, say):
  """Returns the data set, its split by both names, and the folder of the data.

  First 'train', 'val' or 'test', then the split or slice that it stands for.
  Without a test split, 'val' takes its place.
  """
  name, taken, folder = data_of(weights, data, split, data_dir)
  own = datasets.own_splits(name, folder, train=False)
  if taken == 'test' and not own['test']:
    split = 'val'
    name, taken, folder = data_of(weights, data, split, data_dir)
    say(f'{name} has no test split: evaluating on val instead')
  elif split == 'test' and taken == data_of(weights, data, 'val', data_dir)[1]:
    say(f"the run has no test split: its test and val are '{taken}'")
  elif split == 'test' and data and weights.task == 'classification':
    place = datasets.folder_of(name, folder)
    is_of_run = weights.recipe and name == weights.recipe.data.name
    divided = place and own['train'] and not class_folders.have_splits(place)
    if divided and not is_of_run:
      say(
          f'{place.name} has no splits: evaluating on a tenth of each class; '
          'if no image was trained on, --split=all takes all'
      )
  return name, split, taken, folder


def _open_records(weights, name, taken, data_dir, size):
  """Returns the records, resized to `size` or, with a dense head, within it."""
  classifies = weights.task == 'classification'
  found = datasets.load(
      name,
      taken,
      data_dir,
      task=weights.task,
      image_size=size,
      eval_crop=weights.card.crop_at(size) if classifies else 0.0,
      storage='decode',  # Each image is needed only once.
  )
  if weights.task == 'segmentation':
    if not segmentation.has_labels(found.source):
      raise UserError(
          f'no pixel of {name} {taken} has a class: choose another split'
      )
  return found


def _text(report, task):
  """Returns a report as text: what was evaluated, and the scores."""
  size, within = report['image_size'], 'within ' * (task != 'classification')
  pixels = f'{within}{size[0]} x {size[1]} pixels' if size else 'as stored'
  text = (
      f'{report["source"]}, {report["data"]} {report["split"]}, {pixels}\n'
      + evaluator.TASKS[task].table(report, report['class_names'])
  )
  if mean := report.get('mirror'):
    text += (
        '\n\nMean of the logits over each image and its mirror image: accuracy '
        f'{mean["accuracy"]:.2%}, cross-entropy {mean["loss"]:.4f}'
    )
  return text


def data_of(
    weights: weights_lib.Weights,
    data: str | None,
    split: str,
    data_dir: str | None,
) -> tuple[str, str, str]:
  """Returns data set, split and folder, which default to the run's or card's.

  Checks that the data set has the classes of the weights, and prepares it if
  possible. The arguments are those of `evaluate_run`.

  Raises:
    UserError: If there is no such data set, or it has other classes.
  """
  recipe = weights.recipe
  if recipe is None and data is None:
    data = weights.card.figures.get('data')  # that its results are of
  if recipe is None and data is None:
    raise UserError(
        f'{weights.origin} does not say which data it is for: name it with '
        f'--data={"|".join(datasets.NAMES)}, or a data set that you prepared'
    )
  name = data or recipe.data.name
  if recipe is not None:  # A run has the absolute path of class folders.
    place = str(datasets.folder_of(name, data_dir or ''))
    name = place if place == recipe.data.name else name
  if recipe is not None and name == recipe.data.name:
    # If the recipe names no test split, the data says whether there is one.
    split = recipe.data.get(f'{split}_split') or split
    data_dir = recipe.data.dir if data_dir is None else data_dir
  figures = weights.card.figures
  if recipe is None and name == figures.get('data'):
    split = figures.get('splits', {}).get(split) or split
  data_dir = data_dir or ''
  weights.check_classes(datasets.info(name, data_dir))
  cifar10.prepare_if_missing(name, data_dir)
  if split == 'val':  # Data may call it otherwise, or have train alone.
    own = datasets.own_splits(name, data_dir, train=False)
    split = own['val'] or split
  return name, split, data_dir


def _scores(weights, records, batch_size, terminal, mirror=False):
  """Returns the scores on all records."""
  card, devices = weights.card, devices_lib.Devices()
  # Of images within bounds, a canvas may be larger than a model's images.
  classifies = weights.task == 'classification'
  model = card.make_model(records.image_shape[:2] if classifies else None)
  eval_step = evaluator.make_eval_step(
      model, card.mean, card.std, weights.task, mirror=mirror
  )
  batch_size = devices.rounded_up(batch_size)
  scores = evaluator.evaluate(
      compilation.show_compilation(
          jax.jit(eval_step), 'the evaluation', terminal
      ),
      {'': weights.variables},
      map(
          devices.put_batch,
          batches_lib.eval_batches(records, batch_size=batch_size),
      ),
      weights.task,
      records=records,
      num_classes=card.num_classes,
  )
  return scores['']


def report_path(
    kind: str,
    source: str | pathlib.Path,
    weights: weights_lib.Weights,
    data: str,
    split: str,
    *,
    data_dir: str | None = None,
    image_size: int | None = None,
    out: pathlib.Path | None = None,
) -> pathlib.Path:
  """Returns the file of a report: `KIND_SPLIT_STEP.json` in the run folder.

  Args:
    kind: First word of the name.
    source: The weights, as the user named them.
    weights: The weights.
    data: The data set.
    split: Its split, as the user named it.
    data_dir: Folder of the data sets; its name is part of the file's, if it is
      not the run's.
    image_size: Size that images were resized to, if it is not the weights' own.
    out: Folder for the reports of several sources; None for the run's.
  """
  folder, words = weights.folder, [data]
  own = weights.recipe and weights.recipe.data
  if own and data_dir:
    root, run_s = map(prepared.data_root, (data_dir, own.dir))
    if root.resolve() != run_s.resolve():
      words.append(root.name)
  if weights.recipe is None:
    folder = pathlib.Path()
    source = pathlib.Path(os.path.abspath(str(source).removeprefix(hub.PREFIX)))
    source = source.with_suffix('') if source.is_file() else source
    here = pathlib.Path.cwd()
    inside = source.is_relative_to(here)
    words = [*(source.relative_to(here) if inside else source).parts, *words]
  elif out is not None:
    words = [*folder.absolute().parts[-2:], *words]
  elif data == own.name:
    words = words[1:]
  # `-` keeps the place of the colon in a slice.
  name = '_'.join([*words, split]).replace(':', '-').replace('%', 'pct')
  name = re.sub(r'[^\w.-]+', '_', name).strip('_')
  if len(name.encode()) > _LONGEST:  # The end says more than the beginning.
    end = name.encode()[-_LONGEST:].decode(errors='ignore')
    name = f'{end}_{zlib.crc32(name.encode()):08x}'
  step = '' if weights.step is None else f'_{weights.step}'
  average = '_ema' if weights.which == 'ema' else ''
  size = f'_{image_size}px' if image_size else ''
  return (out or folder) / f'{kind}_{name}{step}{average}{size}.json'
