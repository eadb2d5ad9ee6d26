"""The `README.md` of exported weights, as model hubs expect it."""

from collections.abc import Iterator
import pathlib
import shlex

import huggingface_hub
import jax

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints.raw_and_ema import EMA, PREFIX
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense import create
from gswinrmt_jax.runs import summary
from gswinrmt_jax.runs.scores import SCORES
from gswinrmt_jax.terminal import counted
from gswinrmt_jax.weights.load import Weights

FILE = 'README.md'
LIBRARY = 'gswinrmt_jax'
# Formats that this package can load; the others are programs.
_LOADED = ('safetensors', 'safetensors-float16', 'torch')
_CITATION = (
    'Please cite gswinrmt_jax and the papers of Gated-SwinRMT and RMT: '
    'CITATION.cff of its repository names them.'
)


def write(
    folder: pathlib.Path,
    weights: Weights,
    file_format: str,
    *,
    license: str = '',
    note: str = '',
    source: str,
) -> None:
  """Writes the model card; it describes the format exported last.

  Args:
    folder: The folder of the weights.
    weights: The weights, with their figures. The title is the run's name, that
      of the model for weights without a run.
    file_format: A name in `export.FORMATS`.
    license: Licence by its name on hubs, such as 'apache-2.0'.
    note: A paragraph about data and training.
    source: What `load_model` takes in the card's example.
  """
  card = weights.card
  data, known = card.figures.get('data'), False
  splits = card.figures.get('splits', {})
  if weights.recipe is not None:
    data = weights.recipe.data.name
  if data:
    # Of class folders, it is a path, which means nothing on another machine.
    path = pathlib.Path(data)
    data, known = path.name, not path.is_absolute()
  is_run = weights.recipe is not None
  title = weights.folder.absolute().name if is_run else card.name
  # As model hubs name them.
  detects = weights.task == 'detection'
  task = 'object-detection' if detects else f'image-{weights.task}'
  metadata = huggingface_hub.ModelCardData(
      library_name=LIBRARY,
      pipeline_tag=task if card.num_classes else None,
      license=license or None,
      tags=['jax', 'flax', 'vision-transformer'],
      datasets=[data] if known else None,
      model_name=title,
      eval_results=[
          huggingface_hub.EvalResult(
              task_type=task,
              dataset_type=data,
              dataset_name=data,
              dataset_split=splits.get(split, split),
              metric_type=SCORES[name].metric or name,
              metric_name=label,
              metric_value=round(value, 4),
          )
          for label, split, name, value, _ in _measured(weights)
          if data
      ],
  )
  leaves = jax.tree.leaves(weights.variables['params'])
  parameters = sum(leaf.size for leaf in leaves)
  lines = [
      f'---\n{metadata.to_yaml()}\n---\n',
      f'# {title}\n',
      f'{factory.describe(card.name, card.fields, parameters)}; '
      f'{_images(card)}.\n',
      '## Results\n',
      *_results(weights, data),
      *([f'\n## Training\n\n{note}'] if note else []),
      '\n## Use\n',
      *_use(card, file_format, source),
      '\n## Licence and citation\n',
      f'Weights: {license or "no licence was stated"}.',
      _CITATION,
  ]
  files.write_text(folder / FILE, '\n'.join(lines) + '\n')


def is_one(path: pathlib.Path) -> bool:
  """Returns whether a README is a model card written by `write`."""
  return f'\nlibrary_name: {LIBRARY}\n' in path.read_text('utf-8', 'replace')


def _images(card):
  """Says what the model returns, and for which images."""
  size = '{} x {} pixels'.format(*card.image_size)
  classes = 'no head'
  if card.num_classes:
    classes = counted(card.num_classes, 'class', 'classes')
  if card.dense is not None:
    of, trained = 'objects', 'within'
    if card.task == 'segmentation':
      of, trained = 'pixels', 'with'
    return (
        f'{create.TITLES[card.dense["head"]]}, {classes} of {of}, for RGB '
        f'images of any size, trained {trained} {size}'
    )
  if card.crop:
    height, width = (int(side / card.crop) for side in card.image_size)
    how = f'cut from the middle of an image resized to cover {height} x {width}'
  else:
    how = 'to which an image is resized, ignoring aspect ratio'
  return f'{classes}, for RGB images of {size}, {how} (bicubic)'


def _checkpoint(weights):
  """Returns the step of the weights in their run, and 'raw' or 'ema'.

  Exported weights have them in their card.
  """
  if weights.step is not None:
    return weights.step, weights.which
  own = weights.card.figures.get('checkpoint', {})
  return own.get('step'), own.get('weights')


def _own_part(weights):
  """Returns 'best' or 'last' and its results; '' if neither is of this step."""
  figures, (step, _) = weights.card.figures, _checkpoint(weights)
  for name in ('best', 'last'):
    part = figures.get(name, {})
    if step is not None and part.get('step') == step:
      return name, part
  return '', {}


def _measured(weights):
  """Yields label, split, score, value and format of each measured result."""
  (_, part), (_, which) = _own_part(weights), _checkpoint(weights)
  prefix = PREFIX if which == EMA else ''
  for label, split, name, number in summary.FIGURES:
    # Among up to five classes, the right one is always among the first five.
    trivial = name == 'top5_accuracy' and weights.card.num_classes <= 5
    figure = f'{split}_{prefix}{name}'
    if figure in part and not trivial:
      yield label, split, name, part[figure], number


def _results(weights, data) -> Iterator[str]:
  """Yields the results that were measured with exactly these weights."""
  name, part = _own_part(weights)
  if not name:
    yield 'Not measured.'
    return
  of = f'on {data}' if data else ''  # `push` leaves out a folder's path.
  yield f'| {of} | |\n| --- | --- |'
  for label, _, _, value, number in _measured(weights):
    yield f'| {label} | {value:{number}} |'
  _, which = _checkpoint(weights)
  kind = ', moving average of the weights' if which == EMA else ''
  splits = weights.card.figures.get('splits', {})
  measured = {split for _, split, *_ in _measured(weights)}
  images = ''.join(
      f'; {label} on {splits[split]}'
      for split, label in (('val', 'validation'), ('test', 'test'))
      if split in measured and splits.get(split)
  )
  yield (
      f'\nThe {name} checkpoint, epoch {part["epoch"]}{kind}; seed '
      f'{weights.card.figures["seed"]}{images}.'
  )


def _use(card, file_format, source) -> Iterator[str]:
  """Yields instructions for using the exported file."""
  height, width = card.image_size
  if file_format not in _LOADED:
    result = 'logits' if card.num_classes else 'features'
    if card.task == 'detection':
      result = 'boxes, scores, labels and any masks'
    yield (
        f'A program: uint8 RGB pixels `[b, {height}, {width}, 3]` in, {result} '
        'out; the normalisation is inside.'
    )
    if card.task == 'detection':
      yield (
          'Images are placed in it as docs/weights.md of gswinrmt_jax says, '
          'under Export.'
      )
    return
  yield '```python\nimport gswinrmt_jax\n'
  yield f'loaded = gswinrmt_jax.load_model({source!r})'
  if card.task == 'segmentation':
    yield "found = loaded.predict('image.jpg')"
    yield 'print(found)  # shares of classes; found.label: class of each pixel'
  elif card.task == 'detection':
    yield "found = loaded.predict('image.jpg')"
    yield 'print(found)  # found.boxes, .scores, .labels and .masks are arrays'
  elif card.num_classes:
    yield "print(loaded.predict('image.jpg'))"
    yield f"logits = loaded.logits('image.jpg')  # [1, {card.num_classes}]"
  else:
    yield "features = loaded.embed('image.jpg')  # one vector for the image"
  yield '```\n'
  mean, std = (
      f'({", ".join(format(value, "g") for value in values)})'
      for values in (card.mean, card.std)
  )
  yield (
      'Images are resized and normalised as in evaluation: '
      f'`loaded.model` takes (pixels / 255 - {mean}) / {std}.'
  )
  if card.num_classes:
    command = shlex.join(['gswinrmt', 'predict', source, 'image.jpg'])
    yield f'From a terminal: `{command}`.'
