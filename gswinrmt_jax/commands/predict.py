"""Predicts the classes of images, the most probable first.

Images may be of any size and format. They are resized and cropped as in
evaluation: with the weights' own crop, or, where training did not crop, so that
their middle fills the model's image. An image that cannot be read is named and
skipped; the exit status is then 1. --maps also writes pictures of what the
model attends to.
"""

import argparse
import collections
import json
import pathlib
import sys

from gswinrmt_jax.commands import arguments, guard
from gswinrmt_jax.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  add = parser.add_argument
  add('images', metavar='IMAGE', nargs='+', help='image files')
  arguments.add_number(parser, '--top', default=5, help='classes (default: 5)')
  arguments.add_number(
      parser, '--image-size', help="resize to N x N (default: the model's size)"
  )
  add(
      '--maps',
      metavar='DIR',
      help='write pictures to DIR/IMAGE: attention reach, decay kernels, gate, '
      'Grad-CAM of the most probable class',
  )
  add(
      '--point',
      type=_point,
      metavar='X,Y',
      help="pixel of the model's image whose attention --maps shows (default: "
      'the middle)',
  )
  add('--json', action='store_true', help='print JSON instead of a table')


def run(args: argparse.Namespace) -> int:
  """Runs the command; returns 1 if an image was skipped."""
  point = args.point
  if point and not args.maps:
    raise UserError('--point is for --maps')

  from gswinrmt_jax.deploy import predict

  weights = arguments.load_weights(args)
  predictor = predict.Predictor(weights, args.image_size)
  height, width = predictor.image_size
  if point and not (point[0] < width and point[1] < height):
    raise UserError(
        f'--point={point[0]},{point[1]} is outside of the {width} x {height} '
        'pixels that the model sees'
    )
  paths, images = [], []
  for path in map(pathlib.Path, args.images):
    try:
      images.append(predictor.read(path))
      paths.append(path)
    except UserError as error:
      guard.complain(str(error))
  found = list(predictor.predict(paths, images, args.top)) if paths else []
  print(f'weights: {weights.origin}', file=sys.stderr)
  if args.json:
    print(json.dumps([one.to_dict() for one in found], indent=2))
  else:
    for one in found:
      print(one.path)
      for name, probability in zip(one.names, one.probabilities, strict=True):
        print(f'  {probability:7.2%}  {name}')
  if args.maps:
    folders = _folders(pathlib.Path(args.maps), paths)
    for one, image, folder in zip(found, images, folders, strict=True):
      predictor.write_maps(one, image, folder, point)
      print(f'{one.path}: maps in {folder}', file=sys.stderr)
  return 0 if len(paths) == len(args.images) else 1


def _folders(parent, paths):
  """Yields a folder for each image; a repeated name gets a number."""
  count = collections.Counter()
  for path in paths:
    count[path.name] += 1
    again = f'_{count[path.name]}' if count[path.name] > 1 else ''
    yield parent / f'{path.name}{again}'


def _point(text):
  parts = text.split(',')
  if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
    raise UserError(f"--point is like 112,80, not '{text}'")
  return int(parts[0]), int(parts[1])
