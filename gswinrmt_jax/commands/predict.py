"""Names what pictures show, the most probable classes first.

Pictures may be of any size and kind. They are resized and cut as evaluation
does: by the weights' own crop, or, where training took images as they were,
so that their middle fills the model's images. One that cannot be read is named
and passed over; the exit status is then 1. With --maps, pictures of what the
model looks at are written as well.
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
  parser.add_argument('images', metavar='IMAGE', nargs='+', help='pictures')
  parser.add_argument(
      '--top', type=int, default=5, metavar='N', help='classes (default: 5)'
  )
  parser.add_argument(
      '--image-size',
      type=int,
      metavar='N',
      help="resize to N x N (default: the model's own)",
  )
  parser.add_argument(
      '--maps',
      metavar='DIR',
      help='write pictures to DIR/IMAGE: attention reach, decay kernels, gate, '
      'Grad-CAM of the most probable class',
  )
  parser.add_argument(
      '--point',
      metavar='X,Y',
      help="pixel of the model's image whose attention --maps shows (default: "
      'the middle)',
  )
  parser.add_argument(
      '--json', action='store_true', help='print JSON instead of a table'
  )


def run(args: argparse.Namespace) -> int:
  """Runs the command; returns 1 if a picture was passed over."""
  step = arguments.step(args)
  arguments.check_positive(args, 'top', 'image_size')
  point = _point(args)

  # Imported here: --help need not wait for JAX.
  from gswinrmt_jax.deploy import predict
  from gswinrmt_jax.weights import load

  loaded = load.load(
      pathlib.Path(args.weights),
      step=step,
      which=args.which,
      warn=guard.complain,
  )
  predictor = predict.Predictor(loaded, args.image_size)
  height, width = predictor.image_size
  if point and not (point[0] < width and point[1] < height):
    raise UserError(
        f'--point={args.point} is outside of the {width} x {height} pixels '
        'that the model sees'
    )
  paths, images = [], []
  for path in map(pathlib.Path, args.images):
    try:
      images.append(predictor.read(path))
      paths.append(path)
    except UserError as error:
      guard.complain(str(error))
  found = list(predictor.predict(paths, images, args.top)) if paths else []
  print(f'weights: {loaded.origin}', file=sys.stderr)
  if args.json:
    print(json.dumps([one.to_dict() for one in found], indent=2))
  else:
    for one in found:
      print(one.path)
      for name, probability in zip(one.names, one.probabilities, strict=True):
        print(f'  {probability:7.2%}  {name}')
  if args.maps:
    places = _places(pathlib.Path(args.maps), paths)
    for one, image, place in zip(found, images, places, strict=True):
      predict.write_maps(predictor, one, image, place, point)
      print(f'{one.path}: maps in {place}', file=sys.stderr)
  return 0 if len(paths) == len(args.images) else 1


def _places(folder, paths):
  """Returns a folder for each picture; of one name, the later get a number."""
  count = collections.Counter()
  for path in paths:
    count[path.name] += 1
    again = f'_{count[path.name]}' if count[path.name] > 1 else ''
    yield folder / f'{path.name}{again}'


def _point(args):
  """Returns what --point says, as numbers."""
  if args.point is None:
    return None
  if not args.maps:
    raise UserError('--point is for --maps')
  parts = args.point.split(',')
  if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
    raise UserError(f"--point is like 112,80, not '{args.point}'")
  return int(parts[0]), int(parts[1])
