"""Does Grad-CAM point at the digit? On images of `cluttered_digits.py`.

  python examples/where_it_looks.py runs/cluttered_digits pictures

Counts over the test images how often the token with the largest value has its
centre in the box of the digit ("pointing game", Zhang et al. 2016), and how
often a random token would.
"""

import argparse
import json
import pathlib

import jax
import numpy as np

from gswinrmt_jax import maps as maps_lib
from gswinrmt_jax.deploy import predict
from gswinrmt_jax.weights import load

STAGE = 2  # at 64 pixels a map of 8 x 8


def main() -> None:
  """Prints the two shares."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument('run', type=pathlib.Path)
  parser.add_argument('pictures', type=pathlib.Path)
  args = parser.parse_args()
  predictor = predict.Predictor(load.load(args.run))
  model, variables = predictor.model, predictor.variables
  stride = model.arch.strides[STAGE - 1]

  @jax.jit
  def look(image):
    image = predictor.normalized(image[None])
    maps = model.apply(variables, image, train=False, method='features')
    label = model.apply(variables, image, train=False)[0].argmax()
    activation = maps[f'stage{STAGE}']
    (cam,) = maps_lib.grad_cam(
        model, variables, image, activation, label, STAGE
    )
    return cam

  boxes = json.loads((args.pictures / 'boxes.json').read_text())
  hits, chances = [], []
  for name, box in boxes.items():
    if not name.startswith('test/'):
      continue
    cam = np.asarray(look(predictor.read(args.pictures / name)))
    rows, columns = (stride * (np.arange(n) + 0.5) for n in cam.shape)
    left, top, right, bottom = box
    inside = ((top <= rows) & (rows < bottom))[:, None] & (
        (left <= columns) & (columns < right)
    )
    hits.append(inside.flat[cam.argmax()])
    chances.append(inside.mean())
  print(
      f'the largest value is on the digit in {np.mean(hits):.1%} of '
      f'{len(hits)} pictures; at random {np.mean(chances):.1%}'
  )


if __name__ == '__main__':
  main()
