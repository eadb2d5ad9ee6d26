"""Measures how often a model looks at the digit of `cluttered_digits.py`.

  python examples/where_it_looks.py runs/cluttered images

For each stage, over the test images: how often the token with the largest
Grad-CAM value has its centre in the box of the digit ("pointing game", Zhang et
al. 2016), how often a random token would, the share of empty maps, which are 0
everywhere and count as a random token, and, of a gated model, the mean gate of
the last block on tokens inside and outside the box. `--json FILE` writes the
result.
"""

import argparse
import json
import pathlib

from flax import linen as nn
import jax
import numpy as np
import PIL.Image

import gswinrmt_jax
from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interpret import maps as maps_lib
from gswinrmt_jax.models.attention import GATES


def main() -> None:
  """Prints the result, and writes it if `--json` is given."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument('run', type=pathlib.Path)
  parser.add_argument('images', type=pathlib.Path)
  parser.add_argument('--json', type=pathlib.Path)
  args = parser.parse_args()
  try:
    loaded = gswinrmt_jax.load_model(args.run)
    boxes = files.read_json(args.images / 'boxes.json')
  except (UserError, OSError) as error:
    parser.error(str(error))
  height, width = loaded.image_size
  look = jax.jit(lambda image: _look(loaded, image))
  boxes = {name: box for name, box in boxes.items() if name.startswith('test/')}
  if not boxes:
    parser.error(f'{args.images}/boxes.json has no test images')
  found = []
  for name, box in boxes.items():
    stages = jax.device_get(look(loaded.preprocess(args.images / name)))
    with PIL.Image.open(args.images / name) as file:
      size = file.height, file.width  # The box is in these pixels.
    crop = loaded.card.crop
    if crop not in (0, 1) or (crop and size[0] * width != size[1] * height):
      parser.error(f'{args.run} sees a part of {name}: its box would be wrong')
    found.append([_scores(cam, gate, size, box) for cam, gate in stages])
  names = ['cam_on_digit', 'random_on_digit', 'cam_empty']
  if loaded.model.arch.gate:
    names += ['gate_on_digit', 'gate_elsewhere']
  means = np.nanmean(found, axis=0)
  result = {
      'images': len(boxes),
      'stages': [
          dict(zip(names, map(float, row), strict=True)) for row in means
      ],
  }
  print(json.dumps(result, indent=1))
  if args.json:
    files.write_json(args.json, result)


def _look(loaded, image):
  """Returns Grad-CAM of the predicted class and the gate, for each stage."""
  model, variables = loaded.model, loaded.variables
  image = image[None]
  maps = model.apply(variables, image, train=False, method='features')
  gates = {}  # of the last block of each stage

  def keep_gate(next_function, args, kwargs, context):
    out = next_function(*args, **kwargs)
    if context.module.name == 'gate':
      gates[context.module.path[0]] = GATES[model.arch.gate_fn](out)
    return out

  with nn.intercept_methods(keep_gate):
    logits = model.apply(variables, image, train=False)
  label, stages = logits[0].argmax(), []
  for stage in range(model.arch.stages):
    name = f'stage{stage + 1}'
    (cam,) = maps_lib.grad_cam(
        model, variables, image, maps[name], label, stage
    )
    gate = gates[name][0].mean(-1) if name in gates else None
    stages.append((cam, gate))
  return stages


def _scores(cam, gate, size, box):
  """Returns hit, chance of a hit, emptiness, gate in the box and elsewhere.

  Without tokens there, a gate is NaN; without a gate, it is left out.
  """
  rows, columns = (
      pixels / count * (np.arange(count) + 0.5)
      for pixels, count in zip(size, cam.shape, strict=True)
  )
  left, top, right, bottom = box
  inside_rows = (top <= rows) & (rows < bottom)
  inside = inside_rows[:, None] & ((left <= columns) & (columns < right))
  chance, empty = inside.mean(), not cam.any()
  # The first token of a map of zeros is not its largest.
  scores = [chance if empty else inside.flat[cam.argmax()], chance, empty]
  if gate is not None:
    for where in (inside, ~inside):
      scores.append(gate[where].mean() if where.any() else np.nan)
  return scores


if __name__ == '__main__':
  main()
