"""Predicts the classes of images or of their pixels, or the objects in them.

IMAGE is a file, or a folder, whose images are taken at any depth, in the order
of their names. Images may have any size; BMP, GIF, JPEG, PNG, PPM, TIFF and
WebP are read. They are preprocessed as in evaluation: if the weights have a
crop (data.eval_crop), resized and centre-cropped to the training size,
otherwise resized to it ignoring aspect ratio. At another size, by --image-size,
accuracy may be far lower. An image that cannot be read is named and skipped;
the exit status is then 1. --maps also draws what the model looks at.

--out FILE.csv writes a row for each image instead of printing it. Where DIR or
a folder in it has the name of a class, as in DIR/cat/1.jpg, that is the true
class of its images, and the accuracy is printed at the end.

For each image NAME.jpg, a segmenter writes NAME_overlay.png, the image in the
colours of its classes with a legend, and NAME_labels.png, whose values are the
classes. It prints the share of each class. --image-size is then the shorter
side, --out a folder, and --top and --maps do not apply.

A detector writes NAME_objects.png, the image with boxes, masks, names and
scores, and objects.json, all objects in COCO's format: boxes x y w h in pixels,
category ids from 1, masks in run-length encoding. --least-score leaves out
objects with a lower score; the detector itself finds none below 0.05.
--image-size is the shorter side, --out a folder.
"""

import argparse
from collections import Counter, defaultdict
import csv
import io
import itertools
import json
import os
import pathlib
import sys

import tqdm

from gswinrmt_jax import files
from gswinrmt_jax.commands import arguments, guard
from gswinrmt_jax.data import collection, image_paths, parallel
from gswinrmt_jax.errors import RunError, UserError
from gswinrmt_jax.terminal import counted, Terminal

_FOLDER = 'predictions'  # the default of --out, unless it is a file
# Ends of the names of pictures in it.
_WRITTEN = ('_overlay.png', '_labels.png', '_objects.png')
# Pictures in a folder of --maps; each has the first and the last.
_MAPS = ('attention_reach.png', 'decay_kernels.png', 'gate.png', 'grad_cam.png')
_OBJECTS = 'objects.json'  # of a detector
_LEAST = 0.3  # the default of --least-score
# Options that only some models have.
_ONLY = {
    'top': ('classification', 'classifiers'),
    'maps': ('classification', 'classifiers'),
    'least_score': ('detection', 'detectors'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  add = parser.add_argument
  add(
      'images',
      type=arguments.path,
      metavar='IMAGE',
      nargs='*',  # `run` says what a lone argument is.
      help='image files, or folders of images',
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
      metavar='FILE',
      help='write the predictions to FILE.csv; of a segmenter or detector: '
      'folder for its images (default: predictions)',
  )
  add('--json', action='store_true', help='print JSON instead of a table')
  add(
      '--least-score',
      type=_probability,
      metavar='P',
      help='lowest score of the objects that a detector reports (default: 0.3)',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the command; returns 1 if an image was skipped."""
  if args.point and not args.maps:
    raise UserError('--point needs --maps')
  if pathlib.Path(args.weights).suffix.lower() in image_paths.SUFFIXES:
    raise UserError(
        f'{args.weights} is an image: the run or weights come first, gswinrmt '
        'predict RUN_OR_WEIGHTS IMAGE'
    )
  if not args.images:
    raise UserError(
        'no image is named: gswinrmt predict RUN_OR_WEIGHTS IMAGE (or DIR)'
    )
  images, left_out = _find(args.images, {_FOLDER, args.out or _FOLDER})
  weights = arguments.load_weights(args)
  for name, (task, models) in _ONLY.items():
    if getattr(args, name) is not None and weights.task != task:
      raise UserError(f'--{name.replace("_", "-")} is for {models}')
  # stdout has only the predictions, even if stderr is closed.
  terminal = Terminal(sys.stderr or io.StringIO())
  if there := collection.listed(left_out):
    terminal.say(f'left out: {there}')
  predict = {
      'classification': _classify,
      'segmentation': _segment,
      'detection': _detect,
  }
  count = predict[weights.task](args, images, weights, terminal)
  return 0 if count == len(images) else 1


def _classify(args, images, weights, terminal):
  """Predicts classes; returns the number of images."""
  table = pathlib.Path(args.out) if args.out else None
  if table:
    if table.suffix.lower() != '.csv':
      raise UserError(f'--out is {table}: must end in .csv')
    if args.json:
      raise UserError('--out writes a file: leave out --json')
    files.check_can_write(table)
  if args.maps:
    files.check_can_write(pathlib.Path(args.maps) / 'image.png')
  loaded = _load(args, weights, terminal)
  top = args.top or 5
  bar = bool(table or args.json) and not args.maps  # which have a line an image
  found = _predict_each(loaded, images, terminal, top, bar=bar)
  rows, classes = [], {
      image_paths.composed(name): name for name in loaded.class_names
  }
  paths = args.maps and _paths(args.maps, images)
  for one in found:
    rows.append(_row(one, images, classes))
    if not (table or args.json):
      print(one)
    if args.maps:
      path = paths[one.image]
      with terminal.busy(f'Drawing the maps of {one.image}'):
        loaded.write_maps(one, one.image, path, args.point)
      terminal.say(f'{one.image}: maps in {path}')
  if table and not rows:  # An earlier table stays.
    raise RunError('no image could be read')
  if args.json:
    _print_json(rows)
  if table:
    _write_table(table, rows, min(top, len(loaded.class_names)))
    terminal.say(f'predictions of {counted(len(rows), "image")}: {table}')
  known = [row for row in rows if 'true_class' in row]
  if known:
    right = sum(
        row['predictions'][0]['name'] == row['true_class'] for row in known
    )
    terminal.say(
        f'accuracy: {right / len(known):.2%} of '
        f'{counted(len(known), "image")}, whose folders name the true class; '
        'images that the model was trained on count, too (for the test '
        'split: `gswinrmt evaluate`)'
    )
  return len(rows)


def _drawn(args, found, images, folder, terminal):
  """Yields predictions, once printed, and the pictures written of each.

  A picture that cannot be written is named; the others are drawn.
  """
  paths = _paths(folder, images)
  for one in found:
    if not args.json:
      print(one)
    written = []
    try:
      written = [str(path) for path in one.write(paths[one.image])]
      terminal.say(f'{one.image}: {" and ".join(written)}')
    except OSError as error:  # The name may be too long, the disk full.
      terminal.end_line()
      guard.complain(f'{one.image}: not drawn: {error.strerror or error}')
    yield one, written


def _segment(args, images, weights, terminal):
  """Predicts the classes of pixels; returns the number of images."""
  folder = _folder(args, images, ('_overlay', '_labels'), 'segmenter')
  files.check_can_write(folder / 'image.png')
  loaded = _load(args, weights, terminal)
  found = _predict_each(loaded, images, terminal)
  drawn = _drawn(args, found, images, folder, terminal)
  rows = [one.to_dict() | {'written': written} for one, written in drawn]
  if args.json:
    _print_json(rows)
  return sum(bool(row['written']) for row in rows)


def _detect(args, images, weights, terminal):
  """Predicts objects; returns the number of images."""
  from gswinrmt_jax.data import detection
  from gswinrmt_jax.deploy import detections

  if weights.card.dense['head'] != 'retina':
    detection.pycocotools('mask')  # writes the masks of `objects.json`
  folder = _folder(args, images, ('_objects',), 'detector', _OBJECTS)
  files.check_can_write(folder / _OBJECTS)
  loaded = _load(args, weights, terminal)
  least = _LEAST if args.least_score is None else args.least_score
  found = _predict_each(loaded, images, terminal, least)
  drawn = _drawn(args, found, images, folder, terminal)
  pictures = []

  def predictions():  # one at a time: their masks may fill memory
    for one, written in drawn:
      pictures.extend(written)
      yield one

  contents = detections.to_coco(predictions(), loaded.class_names)
  count = len(contents['images'])
  if not count:
    raise RunError('no image could be read')
  if args.json:
    _print_json(contents)
  files.write_json(folder / _OBJECTS, contents)
  number = len(contents['annotations'])
  terminal.say(
      f'{counted(number, "object")} of {counted(count, "image")}: '
      f'{folder / _OBJECTS}'
      + f'; none of at least --least-score {least:g}' * (not number)
  )
  return len(pictures)  # one an image


def _folder(args, images, ends, model, *names):
  """Returns the folder of --out, whose name is not that of a file.

  Beside the images themselves, a file that is to be written may be there
  already, as the label of an image: then it is refused.
  """
  folder = pathlib.Path(args.out or _FOLDER)
  if folder.suffix.lower() in ('.csv', '.json', *image_paths.SUFFIXES):
    raise UserError(
        f'--out is {folder}: must be a folder for a {model}, which writes '
        'files into it'
    )
  for path in map(pathlib.Path, images):
    for name in (*(f'{path.stem}{end}.png' for end in ends), *names):
      written = path.with_name(name)
      if written.exists() and path.parent.resolve() == folder.resolve():
        raise UserError(
            f'{written} is there already, beside the images: choose another '
            '--out'
        )
  return folder


def _load(args, weights, terminal):
  """Returns the loaded model, and says where it comes from."""
  from gswinrmt_jax.deploy import load

  loaded = load.from_weights(weights, args.image_size, warn=guard.complain)
  terminal.say(f'weights: {loaded.origin}')
  return loaded


def _predict_each(loaded, images, terminal, *how, bar=False):
  """Yields the predictions of images; those that cannot be read are named.

  A bar begins after the first, whose program had to be compiled.
  """

  def skip(message):
    terminal.end_line()
    with tqdm.tqdm.external_write_mode(sys.stderr):  # clears a bar
      guard.complain(message)

  found = loaded.predict_each(images, *how, skip=skip)
  with terminal.busy('Compiling the model and predicting'):
    first = [*itertools.islice(found, 1)]
  yield from first
  if bar:
    found = parallel.with_bar(found, 'predicting', len(images) - len(first))
  yield from found


def _print_json(values):
  print(json.dumps(values, indent=2, allow_nan=False))


def _find(arguments, written):
  """Returns images by path, and counts what else is in the folders.

  The values are names of folders: of a file that is named itself, none; of an
  image in a folder that is named, of those from there on, the innermost first.
  Pictures that an earlier call wrote into a folder inside are no images: those
  in `written`, folders of --out, and maps.
  """
  images, left_out = {}, Counter()
  written = [os.path.abspath(folder) for folder in written]
  for argument in map(pathlib.Path, arguments):
    if not argument.is_dir():
      images.setdefault(str(argument), ())
      continue
    ignored, some = Counter(), False
    own = pathlib.Path(os.path.abspath(argument))
    for image in image_paths.find(argument, '', ignored):
      inside = pathlib.PurePath(image.file_name)
      if (len(inside.parts) > 1 and _is_map(own / inside)) or any(
          inside.name.endswith(_WRITTEN)
          and (own / inside).is_relative_to(folder)
          and not own.is_relative_to(folder)
          for folder in written
      ):
        ignored['pictures of an earlier call'] += 1
        continue
      some = True
      folders = tuple(folder.name for folder in inside.parents)
      images[str(argument / inside)] = (*folders[:-1], own.name)
    if not some:
      there = collection.listed(ignored)
      only = f', only {there}' if there else ''
      raise UserError(f'{argument} has no images{only}')
    left_out += ignored
  return images, left_out


def _is_map(path):
  """Returns whether a picture and those beside it are what --maps writes."""
  always = path.with_name(_MAPS[0]), path.with_name(_MAPS[-1])
  return path.name in _MAPS and all(map(os.path.exists, always))


def _row(one, images, classes):
  """Returns a prediction as JSON values, with its true class if it is known."""
  row, folders = one.to_dict(), map(image_paths.composed, images[one.image])
  true_class = next(
      (classes[name] for name in folders if name in classes), None
  )
  return row if true_class is None else {**row, 'true_class': true_class}


def _write_table(path, rows, top):
  """Writes rows as CSV, whole or not at all."""
  path.parent.mkdir(parents=True, exist_ok=True)
  heads = [(f'class_{i}', f'probability_{i}') for i in range(1, top + 1)]
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(['image', 'true_class', *itertools.chain(*heads)])
  for row in rows:
    ranked = ((one['name'], one['probability']) for one in row['predictions'])
    writer.writerow(
        [row['image'], row.get('true_class', ''), *itertools.chain(*ranked)]
    )
  # Names that are not UTF-8 are escaped.
  table = text.getvalue().encode('utf-8', 'backslashreplace').decode('utf-8')
  files.write_text(path, table)


def _paths(parent, images):
  """Returns the path for each image; a repeated name gets a number.

  It does not depend on which of the images can be read.
  """
  paths, taken = {}, set()
  numbers = defaultdict(lambda: itertools.count(2))
  for image in images:
    name = stem = pathlib.Path(image).stem
    while name in taken:
      name = f'{stem}_{next(numbers[stem])}'
    taken.add(name)
    paths[image] = pathlib.Path(parent) / name
  return paths


def _point(text):
  parts = text.split(',')
  if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
    raise UserError(f"--point is '{text}': must be X,Y such as 112,80")
  return int(parts[0]), int(parts[1])


def _probability(text):
  try:
    value = float(text)
  except ValueError:
    value = -1
  if not 0 <= value <= 1:
    raise UserError(f"--least-score is '{text}': must be from 0 to 1")
  return value
