"""The `README.md` of exported weights, as model hubs expect it."""

from collections.abc import Iterator
import pathlib

import jax

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints.raw_and_ema import EMA, PREFIX
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense import segmenter
from gswinrmt_jax.runs import summary
from gswinrmt_jax.weights.load import Weights

FILE = 'README.md'
_HEAD = ('---', 'library_name: gswinrmt_jax')
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
) -> None:
  """Writes the model card; it describes the format exported last.

  `license` is the licence of the weights by its name on hubs, such as
  'apache-2.0'; `note` is a paragraph about data and training.
  """
  lines = _lines(weights, file_format, license, note)
  files.write_text(folder / FILE, '\n'.join(lines) + '\n')


def is_one(path: pathlib.Path) -> bool:
  """Returns whether a README is a model card written by `write`."""
  return path.read_text('utf-8', 'replace').startswith('\n'.join(_HEAD))


def _lines(
    weights: Weights, file_format: str, license: str, note: str
) -> Iterator[str]:
  card = weights.card
  data = weights.recipe.data.name if weights.recipe is not None else None
  height, width = card.image_size
  classes = f'{card.num_classes} classes' if card.num_classes else 'no head'
  images = f'RGB images of {height} x {width} pixels'
  if card.segmenter is not None:
    classes = f'{segmenter.TITLES[card.segmenter["head"]]}, {classes} of pixels'
    images = f'RGB images of any size, trained with {height} x {width} pixels'
  elif card.crop:
    images += (
        f', bicubic, of which evaluation keeps {card.crop:.1%} along a side'
    )
  else:
    images += (
        ', bicubic, to which evaluation resizes them, ignoring aspect ratio'
    )
  yield from _front_matter(weights, data, license)
  yield from ('', f'# {card.name}', '')
  leaves = jax.tree.leaves(weights.variables['params'])
  parameters = sum(leaf.size for leaf in leaves)
  yield (
      f'{factory.describe(card.name, card.fields, parameters)}; {classes}, for '
      f'{images}.'
  )
  yield from ('', '## Results', '', *_results(weights, data))
  if note:
    yield from ('', '## Training', '', note)
  yield from ('', '## Use', '', *_use(card, file_format))
  yield from ('', '## Licence and citation', '')
  yield f'Weights: {license or "no licence was stated"}.'
  yield _CITATION


def _front_matter(weights, data, license):
  """Yields the YAML that model hubs read."""
  yield from _HEAD
  task = f'image-{weights.task}'  # as model hubs name it
  if weights.card.num_classes:
    yield f'pipeline_tag: {task}'
  if license:
    yield f'license: {license}'
  yield 'tags: [jax, flax, vision-transformer]'
  if data:
    yield f'datasets: [{data}]'
  measured = list(_measured(weights))
  if measured:
    yield 'model-index:'
    yield f'- name: {weights.card.name}'
    yield '  results:'
    yield f'  - task: {{type: {task}}}'
    yield f'    dataset: {{name: {data}, type: {data}}}'
    yield '    metrics:'
    for label, figure, value, _ in measured:
      kinds = ('mean_iou', 'accuracy', 'loss')
      kind = next(kind for kind in kinds if figure.endswith(kind))
      yield f"    - {{type: {kind}, name: '{label}', value: {value:.4f}}}"
  yield '---'


def _own_part(weights):
  """Returns 'best' or 'last' and its results; '' if neither is of this step."""
  figures = weights.card.figures
  for name in ('best', 'last'):
    part = figures.get(name, {})
    if weights.step is not None and part.get('step') == weights.step:
      return name, part
  return '', {}


def _measured(weights):
  """Yields label, name, value and format of each measured result."""
  _, part = _own_part(weights)
  prefix = PREFIX if weights.which == EMA else ''
  for label, name, number in summary.FIGURES:
    split, _, figure = name.partition('_')
    figure = f'{split}_{prefix}{figure}'
    if figure in part:
      yield label, figure, part[figure], number


def _results(weights, data):
  """Yields the results that were measured with exactly these weights."""
  name, part = _own_part(weights)
  if not name:
    yield 'Not measured.'
    return
  yield from (f'| on {data} | |', '| --- | --- |')
  for label, _, value, number in _measured(weights):
    yield f'| {label} | {value:{number}} |'
  kind = ', moving average of the weights' if weights.which == EMA else ''
  yield ''
  yield (
      f'The {name} checkpoint, epoch {part["epoch"]}{kind}; seed '
      f'{weights.card.figures["seed"]}.'
  )


def _use(card, file_format):
  """Yields instructions for using the exported file."""
  height, width = card.image_size
  result = 'logits' if card.num_classes else 'features'
  if file_format not in _LOADED:
    yield (
        f'A program: uint8 RGB pixels `[b, {height}, {width}, 3]` in, {result} '
        'out; the normalisation is inside.'
    )
    return
  mean, std = (
      f'({", ".join(format(value, "g") for value in values)})'
      for values in (card.mean, card.std)
  )
  yield from ('```python', 'import gswinrmt_jax', '')
  yield "loaded = gswinrmt_jax.load_model('FOLDER')"
  if card.num_classes:
    yield "print(loaded.predict('image.jpg'))"
  yield (
      f'{result} = loaded.model.apply(loaded.variables, images, train=False)'
  )
  yield from ('```', '')
  normalised = f'(pixels / 255 - {mean}) / {std}'
  if card.segmenter is None:
    yield (
        f'`images` are float32 `[b, {height}, {width}, 3]`, {normalised}, as '
        '`loaded.preprocess(image)` returns each.'
    )
  else:
    yield (
        f'`images` are float32 `[b, h, w, 3]` of any size, {normalised}; '
        'logits are `[b, h, w, k]`.'
    )
  if card.num_classes:
    yield 'From a terminal: `gswinrmt predict FOLDER image.jpg`.'
