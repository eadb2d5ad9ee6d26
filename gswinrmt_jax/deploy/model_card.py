"""The `README.md` of exported weights, as model hubs expect it."""

from collections.abc import Iterator
import pathlib

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints.raw_and_ema import EMA, PREFIX
from gswinrmt_jax.weights.load import Weights

FILE = 'README.md'
_HEAD = ('---', 'library_name: gswinrmt_jax')
_FIGURES = (
    ('validation accuracy', 'val_{}accuracy', '{:.2%}'),
    ('test accuracy', 'test_{}accuracy', '{:.2%}'),
    ('test top-5 accuracy', 'test_{}top5_accuracy', '{:.2%}'),
    ('test cross-entropy', 'test_{}loss', '{:.4f}'),
)
# Formats that this package loads again; the others are programs.
_LOADED = ('safetensors', 'torch')


def write(folder: pathlib.Path, weights: Weights, form: str) -> None:
  """Writes the model card; it describes the format exported last."""
  files.write_text(folder / FILE, '\n'.join(_lines(weights, form)) + '\n')


def is_one(path: pathlib.Path) -> bool:
  """Returns whether a README is a model card that `write` made."""
  return path.read_text(errors='replace').startswith('\n'.join(_HEAD))


def _lines(weights: Weights, form: str) -> Iterator[str]:
  card = weights.card
  data = weights.recipe.data.name if weights.recipe is not None else None
  height, width = card.image_size
  classes = f'{card.num_classes} classes' if card.num_classes else 'no head'
  kept = 'to which evaluation squeezes them whatever their shape'
  if card.crop:
    kept = f'of which evaluation keeps {card.crop:.1%} along a side'
  yield from _HEAD
  if card.num_classes:
    yield 'pipeline_tag: image-classification'
  yield 'tags: [jax, flax, vision-transformer]'
  if data:
    yield f'datasets: [{data}]'
  yield from ('---', '', f'# {card.name}', '')
  yield (
      f'`{card.name}` of gswinrmt_jax, {classes}, for RGB images of '
      f'{height} x {width} pixels, bicubic, {kept}.'
  )
  yield from ('', '## Results', '', *_results(weights, data))
  yield from ('', '## Use', '', *_use(card, form))


def _results(weights, data):
  """Yields what was measured of these weights, and nothing else."""
  figures = weights.card.figures
  parts = {name: figures.get(name, {}) for name in ('best', 'last')}
  own = [name for name in parts if parts[name].get('step') == weights.step]
  if weights.step is None or not own:
    yield 'Not measured.'
    return
  name, part = own[0], parts[own[0]]
  averaged = weights.which == EMA
  yield from (f'| on {data} | |', '| --- | --- |')
  for label, pattern, number in _FIGURES:
    figure = pattern.format(PREFIX if averaged else '')
    if figure in part:
      yield f'| {label} | {number.format(part[figure])} |'
  kind = ', moving average of the weights' if averaged else ''
  yield ''
  yield (
      f'The {name} checkpoint, epoch {part["epoch"]}{kind}; seed '
      f'{figures["seed"]}.'
  )


def _use(card, form):
  """Yields how to call what was written."""
  height, width = card.image_size
  result = 'logits' if card.num_classes else 'features'
  if form not in _LOADED:
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
  yield "model, variables = gswinrmt_jax.load_model('FOLDER')"
  yield f'{result} = model.apply(variables, images, train=False)'
  yield from ('```', '')
  yield (
      f'`images` are float32 `[b, {height}, {width}, 3]`, of pixels / 255 less '
      f'{mean}, over {std}.'
  )
  if card.num_classes:
    yield 'From a terminal: `gswinrmt predict FOLDER picture.jpg`.'
