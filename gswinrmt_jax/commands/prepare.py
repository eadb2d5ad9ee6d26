"""Writes a data set in the format that training and TFDS read, or checks one.

Folders with a folder of images for each class need no preparation: train with
--config.data.name=DIR. `prepare folder DIR` decodes every image in them once,
and reports what is there. Training prepares cifar10 by itself if it is missing.
ImageNet, mini-ImageNet and images with label images or boxes are prepared from
local copies, as data sets of TFDS (TensorFlow Datasets): every image is decoded
once to check it, and its bytes are stored unchanged. For segmentation, an image
and its label image have the same name, except for the suffix and the endings
given by --image-ending and --label-ending.

  gswinrmt prepare cifar10                       download (170 MB)
  gswinrmt prepare cifar10 --archive cifar-10-binary.tar.gz
  gswinrmt prepare cifar10 --dir /data/tfds      then train.py with
                                                 --config.data.dir=/data/tfds
  gswinrmt prepare digits                        ships with the package
  gswinrmt prepare folder DIR                    class folders in DIR, or in
                                                 DIR/train, DIR/val, DIR/test
  gswinrmt prepare segmentation streets --images DIR --labels DIR
                                                 both with train/, val/, test/,
                                                 or both without
    --val 0.2 --test 0 --seed 1                  if they are without
    --replace                                    if it is there already
  gswinrmt prepare detection cells --images DIR --boxes FILE
                                                 COCO's JSON; YOLO's YAML; or
                                                 DIR, with VOC's XML or YOLO's
                                                 text
    --val FILE --test FILE                       of these images
  gswinrmt prepare imagenet --images DIR         official tars, or class folders
  gswinrmt prepare mini_imagenet --images DIR    few-shot release, or folders

docs/data.md describes the layouts of DIR and what is checked.
"""

import argparse
import copy
import functools
import pathlib
import shlex

from gswinrmt_jax import terminal
from gswinrmt_jax.commands import arguments
from gswinrmt_jax.errors import did_you_mean, UserError

_IMAGES = ('dir', 'images', 'jobs', 'on_error', 'replace')
_SHARES = ('val', 'test', 'seed')
_LABELS = ('labels', 'classes', 'values', 'void', 'zero_is_void')
_ENDINGS = ('image_ending', 'label_ending')
# Which options belong to which data set.
_OPTIONS = {
    'folder': ('name', 'jobs'),
    'segmentation': ('name', *_IMAGES, *_SHARES, *_LABELS, *_ENDINGS),
    'detection': ('name', *_IMAGES, *_SHARES, 'boxes', 'classes'),
    'imagenet': _IMAGES,
    'mini_imagenet': (*_IMAGES, 'classes', 'seed'),
    'cifar10': ('dir', 'archive', 'replace'),
    'digits': (),
    'digit_boxes': (),
    'digit_masks': (),
}
_SHOWN = 100  # images that cannot be used are listed, at most
_IN_PLACE = (
    'a folder with a folder of images for each class is read in place: train '
    'with --config.data.name=DIR, check it with `gswinrmt prepare folder DIR`'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add(
      'dataset',
      metavar='DATASET',
      help='cifar10, digits (built in), folder (your own images, by class), '
      'segmentation (images with label images), detection (images with boxes), '
      'imagenet or mini_imagenet',
  )
  add(
      'name',
      nargs='?',
      metavar='NAME',
      help='with `segmentation` or `detection`: the name for config.data.name; '
      'with `folder`: the folder',
  )
  add(
      '--dir',
      type=arguments.path,
      metavar='DIR',
      help='TFDS data directory to write into; default: $TFDS_DATA_DIR, or '
      '~/tensorflow_datasets',
  )
  add(
      '--archive',
      type=arguments.path,
      metavar='FILE',
      help='local cifar-10-binary.tar.gz or cifar-10-python.tar.gz to read '
      'instead of downloading',
  )
  add(
      '--replace',
      action='store_true',
      default=None,
      help='prepare again what is there; without it, other images or options '
      'than before are an error',
  )
  group = parser.add_argument_group(
      'segmentation, detection, imagenet, mini_imagenet'
  )
  add = group.add_argument
  add('--images', metavar='DIR', help='folder of the images')
  arguments.add_number(
      group,
      '--jobs',
      help='with `folder`, too: threads that decode the images; default: one '
      'per core',
  )
  add(
      '--on-error',
      choices=('stop', 'skip'),
      help='if images are damaged, or lack a label image: stop once all have '
      'been checked (default), or leave them out',
  )
  add(
      '--classes',
      type=_path,
      metavar='FILE',
      help='names of the classes, in order, one per line: for segmentation '
      "(default: their numbers), VOC's XML (default: in alphabetical order), "
      "YOLO's text (default: those of data.yaml); for mini_imagenet from "
      "ImageNet's train set: the 100 WordNet identifiers",
  )
  add = parser.add_argument_group('segmentation').add_argument
  add('--labels', metavar='DIR', help='folder of the label images')
  for kind, example in ('image', '_leftImg8bit'), ('label', '_mask'):
    add(
        f'--{kind}-ending',
        metavar='TEXT',
        help=f'what the names of {kind}s end in before the suffix, as in '
        f'--{kind}-ending={example}, if images and labels do not have the same '
        'names; other files are passed over',
    )
  add(
      '--values',
      type=_values,
      metavar='N,N,...',
      help='pixel value of each class, as in 0,255; default: 0,1,2,...',
  )
  add(
      '--void',
      type=int,
      metavar='N',
      help='value of pixels without a class, in addition to 255',
  )
  add(
      '--zero-is-void',
      action='store_true',
      default=None,
      help='0 has no class, and 1 is the first class (ADE20K)',
  )
  add = parser.add_argument_group('detection').add_argument
  add(
      '--boxes',
      type=_path,
      metavar='FILE|DIR',
      help="a JSON file of COCO, a folder with VOC's XML or YOLO's text for "
      "each image, or YOLO's YAML file in that folder",
  )
  add = parser.add_argument_group('images that have no splits yet').add_argument
  for name in ('val', 'test'):
    add(
        f'--{name}',
        type=functools.partial(_share_or_file, name),
        metavar='SHARE',
        help=f'share of all images for {name}; default 0.1; with detection, '
        'also the JSON file of '
        "these images, or a list of their names for VOC's and YOLO's files",
    )
  add(
      '--seed',
      type=int,
      metavar='N',
      help='seed of the random split; default 0',
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  _check_options(args)
  if not _OPTIONS[args.dataset]:
    print(f'{args.dataset}: ships with this package, nothing to prepare')
  elif args.dataset == 'cifar10':
    from gswinrmt_jax.data.prepare import cifar10

    cifar10.prepare(args.dir or '', args.archive, replace=bool(args.replace))
  elif args.dataset == 'folder':
    _report_folder(args)
  else:
    _prepare_images(args)


def _check_options(args):
  if args.dataset not in _OPTIONS:
    near = did_you_mean(args.dataset, _OPTIONS)
    said = near or f'; known: {", ".join(_OPTIONS)}'
    raise UserError(
        f'unknown data set {args.dataset!r}{said}; for your own images: '
        'folder, segmentation or detection'
    )
  for key, value in vars(args).items():
    if key in ('dataset', *_OPTIONS[args.dataset]) or value is None:
      continue
    option = f'--{key.replace("_", "-")}'
    what = f'NAME ({value!r})' if key == 'name' else option
    if args.dataset == 'folder':
      what += f'; {_IN_PLACE}'
    raise UserError(f'prepare {args.dataset} takes no {what}')


def _report_folder(args):
  """Prints what is in class folders, and how to use them."""
  from gswinrmt_jax.data import class_folders, parallel
  from gswinrmt_jax.data import collection as collections
  from gswinrmt_jax.data.prepare import inspection

  if not args.name:
    raise UserError(f'prepare folder needs a folder; {_IN_PLACE}')
  root = _folder('folder', args.name)
  found = class_folders.read(root, train=False)
  collection = copy.deepcopy(found)  # `read` keeps the original.
  jobs = args.jobs or parallel.cores()
  table, problems = inspection.inspect_all(root.name, collection, jobs)
  collection.remove(problems)
  if collection.images:
    summary = inspection.summarize(collection, table, problems)
    lines = inspection.lines(root.name, collection.labels, summary)
    print(*map(terminal.printable, lines), sep='\n')
  elif not problems:
    skipped = collections.listed(found.ignored) or 'nothing'
    raise UserError(f'{root} has no image; skipped: {skipped}')
  if problems:
    shown = [f'  {name}: {why}' for name, why in problems.items()][:_SHOWN]
    print(*map(terminal.printable, shown), sep='\n')
    raise UserError(
        f'{len(problems):,} of the images of {root} cannot be used, the first '
        f'{next(iter(problems))}: repair or remove them'
    )
  path = shlex.quote(str(root))
  use = f'gswinrmt train --config=folder --config.data.name={path}'
  try:
    class_folders.read(root)
  except UserError as error:
    print(terminal.printable(f'No data to train with: {error}'))
    use = f'gswinrmt evaluate WEIGHTS --data {path}'
    use += ' --split train' * (found.splits.keys() == {'train'})
  print(f'Nothing to prepare: {use}')


def _prepare_images(args):
  from gswinrmt_jax.data import parallel
  from gswinrmt_jax.data.prepare import writer

  name = args.dataset
  if name in ('segmentation', 'detection'):
    writer.check_name(args.name, name)
    name = args.name
  if not args.images:
    raise UserError(f'prepare {args.dataset} needs --images DIR')
  if args.dataset == 'segmentation' and not args.labels:
    raise UserError('prepare segmentation needs --labels DIR')
  if args.dataset == 'detection' and not args.boxes:
    raise UserError('prepare detection needs --boxes FILE or DIR')
  writer.prepare(
      name,
      lambda: _find(args),
      data_dir=args.dir or '',
      jobs=args.jobs or parallel.cores(),
      skip_damaged=args.on_error == 'skip',
      replace=bool(args.replace),
  )


def _find(args):
  from gswinrmt_jax.data import collection
  from gswinrmt_jax.data.prepare import imagenet, label_images, object_files

  root = _folder('--images', args.images)
  if args.dataset == 'imagenet':
    return imagenet.find(root)
  if args.dataset == 'mini_imagenet':
    return imagenet.find_mini(root, classes=args.classes, seed=args.seed)
  shares = {'val': args.val, 'test': args.test}
  lists = {k: v for k, v in shares.items() if isinstance(v, pathlib.Path)}
  if args.dataset == 'detection':
    found = object_files.find(root, args.boxes, classes=args.classes, **lists)
    if lists:
      for name, value in {**shares, 'seed': args.seed}.items():
        if value and name not in lists:
          raise UserError(f'--{name} has no effect: the splits are given')
      return found
  else:
    for split, path in lists.items():
      raise UserError(
          f'--{split} {path}: lists are for detection; give a share, or divide '
          'images and labels into train/, val/ and test/'
      )
    found = label_images.find(
        root,
        _folder('--labels', args.labels),
        classes=args.classes,
        void=args.void,
        zero_is_void=bool(args.zero_is_void),
        values=args.values or (),
        endings=(args.image_ending or '', args.label_ending or ''),
    )
  return collection.divide(found, shares, args.seed)


def _values(text):
  try:
    return tuple(map(int, text.split(',')))
  except ValueError:
    raise UserError(
        f'--values {text}: must be numbers, separated by commas, as in 0,255'
    ) from None


def _share_or_file(split, text):
  """Returns what --val or --test is: a share, or the path of a file."""
  try:
    return float(text)
  except ValueError:
    path = _path(text)
  if not path.is_file():
    raise UserError(f'--{split} {text}: is neither a number nor a file')
  return path


def _folder(option, text):
  path = _path(text)
  if not path.is_dir():
    raise UserError(f'{option} {text}: no such folder')
  return path


def _path(text):
  return pathlib.Path(arguments.path(text)).absolute()
