"""The `README.md` beside exported weights, as model hubs expect it."""

from collections.abc import Iterator
import pathlib

from gswinrmt_jax.training.weights import Weights

_FIGURES = (
    ('validation accuracy', 'val_accuracy', '{:.2%}'),
    ('test accuracy', 'test_accuracy', '{:.2%}'),
    ('test top-5 accuracy', 'test_top5_accuracy', '{:.2%}'),
    ('test cross-entropy', 'test_loss', '{:.4f}'),
)


def write(folder: pathlib.Path, weights: Weights) -> None:
  """Writes the card, whole or not at all."""
  part = folder / 'README.md.part'
  part.write_text('\n'.join(_lines(weights)) + '\n')
  part.replace(folder / 'README.md')


def _lines(weights: Weights) -> Iterator[str]:
  card = weights.card
  data = weights.recipe.data.name if weights.recipe is not None else None
  yield from ('---', 'library_name: gswinrmt_jax')
  yield 'pipeline_tag: image-classification'
  yield 'tags: [image-classification, jax, flax]'
  if data:
    yield f'datasets: [{data}]'
  yield from ('---', '', f'# {card.name}', '')
  height, width = card.image_size
  classes = f'{card.num_classes} classes' if card.num_classes else 'no head'
  yield (
      f'`{card.name}` of gswinrmt_jax, {classes}, for RGB images of '
      f'{height} x {width} pixels, bicubic, of which evaluation keeps '
      f'{card.crop:.1%} along a side.'
  )
  yield f'From: {weights.origin}.'
  yield from ('', '## Results', '', *_results(weights, data))
  yield from ('', '## Use', '', '```python')
  yield 'import gswinrmt_jax'
  yield ''
  yield "model, variables = gswinrmt_jax.load_model('FOLDER')"
  yield 'logits = model.apply(variables, images, train=False)'
  yield '```'
  yield ''
  yield (
      f'`images` are float32 `[b, {height}, {width}, 3]`, of pixels / 255 less '
      f'{_numbers(card.mean)}, over {_numbers(card.std)}. Or, from a terminal: '
      '`gswinrmt predict FOLDER picture.jpg`.'
  )


def _results(weights, data):
  """Tells what was measured of these weights, and no more."""
  figures = weights.card.figures
  own = [
      (name, part)
      for name in ('last', 'best')
      if (part := figures.get(name, {})).get('step') == weights.step
  ]
  if weights.step is None or not own:
    return ['Not measured.']
  name, part = own[-1]
  lines = [f'| on {data} | |', '| --- | --- |']
  lines += [
      f'| {label} | {form.format(part[key])} |'
      for label, key, form in _FIGURES
      if key in part
  ]
  return [
      *lines,
      '',
      f'The {name} checkpoint, epoch {part["epoch"]}; seed {figures["seed"]}.',
  ]


def _numbers(values):
  return '(' + ', '.join(f'{value:g}' for value in values) + ')'
