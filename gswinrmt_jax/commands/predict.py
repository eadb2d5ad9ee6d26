"""Predicts the classes of images, the most probable first, or of their pixels.

Images may have any size and format; accuracy holds near the image size of
training, which --image-size can change. They are preprocessed as in evaluation:
resized and centre-cropped with the weights' own crop or, if it is 0, resized
ignoring aspect ratio. An image that cannot be read is named and skipped; the
exit status is then 1. --maps also draws what the model looks at.

For each image NAME.jpg, a segmenter writes NAME_overlay.png, the image in the
colours of its classes with a legend, and NAME_labels.png, whose values are the
classes. It prints the share of each class. --image-size is then the shorter
side, and --top and --maps do not apply.
"""

import argparse
import itertools
import json
import pathlib
import sys

from gswinrmt_jax import files
from gswinrmt_jax.commands import arguments, guard
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal

_IMAGES = ('.jpg', '.jpeg', '.png', '.webp', '.gif', '.bmp', '.tif', '.tiff')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  add = parser.add_argument
  add(
      'images',
      type=arguments.path,
      metavar='IMAGE',
      nargs='+',
      help='image files',
  )
  arguments.add_number(parser, '--top', help='classes to list (default: 5)')
  arguments.add_number(
      parser, '--image-size', help="resize to N x N (default: the model's size)"
  )
  add(
      '--maps',
      type=arguments.path,
      metavar='DIR',
      help='write plots to DIR/NAME for each image NAME.jpg: attention reach, '
      'decay kernels, gate, Grad-CAM of the most probable class',
  )
  add(
      '--point',
      type=_point,
      metavar='X,Y',
      help="pixel of the model's image whose attention --maps shows (default: "
      'the middle)',
  )
  add(
      '--out',
      type=arguments.path,
      metavar='DIR',
      help='folder for the images of a segmenter (default: predictions)',
  )
  add('--json', action='store_true', help='print JSON instead of a table')


def run(args: argparse.Namespace) -> int:
  """Runs the command; returns 1 if an image was skipped."""
  if args.point and not args.maps:
    raise UserError('--point is for --maps')
  if pathlib.Path(args.weights).suffix.lower() in _IMAGES:
    raise UserError(
        f'{args.weights} is an image: the run or weights come first, gswinrmt '
        'predict RUN_OR_WEIGHTS IMAGE'
    )

  from gswinrmt_jax.deploy import loaded_model

  weights = arguments.load_weights(args)
  segments = weights.task == 'segmentation'
  not_for_it = ('top', 'maps') if segments else ('out',)
  for name in not_for_it:
    if getattr(args, name) is not None:
      kind = 'classifiers' if segments else 'segmenters'
      raise UserError(f'--{name} is for {kind}')
  out = (args.out or 'predictions') if segments else args.maps
  if out:
    out = pathlib.Path(out).expanduser()
    files.check_can_write(out / 'image.png')
  loaded = loaded_model.from_weights(
      weights, args.image_size, warn=guard.complain
  )
  if args.point:
    _check_point(args.point, loaded.image_size)
  terminal = Terminal(sys.stderr)  # stdout has only the predictions.
  terminal.say(f'weights: {loaded.origin}')
  options = {} if segments else {'top': args.top or 5}

  def skip(message):
    terminal.end_line()
    guard.complain(message)

  with terminal.busy('Compiling the model and predicting'):
    found = loaded.predict(args.images, skip=skip, **options)
  if args.json:
    told = [one.to_dict() for one in found]
    print(json.dumps(told, indent=2, allow_nan=False))
  else:
    for one in found:
      print(one)
  if segments:
    for one, path in zip(found, _places(out, found), strict=True):
      one.write(path)
      terminal.say(f'{one.image}: {path}_overlay.png and _labels.png')
  elif args.maps:
    for one, path in zip(found, _places(out, found), strict=True):
      with terminal.busy(f'Drawing the maps of {one.image}'):
        loaded.write_maps(one, one.image, path, args.point)
      terminal.say(f'{one.image}: maps in {path}')
  return 0 if len(found) == len(args.images) else 1


def _check_point(point, image_size):
  height, width = image_size
  if not (point[0] < width and point[1] < height):
    raise UserError(
        f'--point={point[0]},{point[1]} is outside of the {width} x {height} '
        'pixels that the model sees'
    )


def _places(parent, predictions):
  """Yields a path for each image; a repeated name gets a number."""
  taken = set()
  for one in predictions:
    name = stem = pathlib.Path(one.image).stem
    number = itertools.count(2)
    while name in taken:
      name = f'{stem}_{next(number)}'
    taken.add(name)
    yield parent / name


def _point(text):
  parts = text.split(',')
  if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
    raise UserError(f"--point is '{text}': must be X,Y such as 112,80")
  return int(parts[0]), int(parts[1])
