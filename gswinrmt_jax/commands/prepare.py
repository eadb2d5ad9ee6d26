"""`gswinrmt prepare`: downloads a data set, or takes a local copy."""

import argparse
import difflib
import pathlib

from gswinrmt_jax.commands import arguments
from gswinrmt_jax.errors import UserError

DESCRIPTION = """\
Writes a data set in the form that training and TensorFlow Datasets (TFDS)
read. For cifar10 training does the same by itself when the data are missing;
pictures of your own, ImageNet and mini-ImageNet are prepared from local copies,
each picture's bytes untouched, after all of them have been decoded once.
"""

EXAMPLES = """\
examples:
  gswinrmt prepare cifar10                       download (170 MB)
  gswinrmt prepare cifar10 --archive cifar-10-binary.tar.gz
  gswinrmt prepare cifar10 --dir /data/tfds      then train.py with
                                                 --config.data.dir=/data/tfds
  gswinrmt prepare digits                        ships with the package
  gswinrmt prepare folder birds --images DIR     class folders in DIR, or in
                                                 DIR/train, DIR/val, DIR/test
  gswinrmt prepare folder birds --images DIR --val 0.2 --test 0 --seed 1
  gswinrmt prepare imagenet --images DIR         official tars, or class folders
  gswinrmt prepare mini_imagenet --images DIR    few-shot release, or folders
docs/data.md has the forms that DIR may have, and what is checked.
"""

_PICTURES = ('images', 'jobs', 'on_error')
# Which options belong to which data set.
_OPTIONS = {
    'folder': ('name', *_PICTURES, 'val', 'test', 'seed'),
    'imagenet': _PICTURES,
    'mini_imagenet': (*_PICTURES, 'classes', 'seed'),
    'cifar10': ('archive',),
    'digits': (),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Describes the command to `parser`."""
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.description = DESCRIPTION
  parser.epilog = EXAMPLES
  parser.add_argument(
      'dataset',
      metavar='DATASET',
      help='cifar10, digits (always there), folder (your own pictures), '
      'imagenet or mini_imagenet',
  )
  parser.add_argument(
      'name',
      nargs='?',
      metavar='NAME',
      help='of `folder`: the name that config.data.name will have',
  )
  parser.add_argument(
      '--dir',
      default='',
      metavar='DIR',
      help='TFDS data directory to write into; default: $TFDS_DATA_DIR, or '
      '~/tensorflow_datasets',
  )
  parser.add_argument(
      '--archive',
      metavar='FILE',
      help='local cifar-10-binary.tar.gz or cifar-10-python.tar.gz to read '
      'instead of downloading',
  )
  pictures = parser.add_argument_group('folder, imagenet, mini_imagenet')
  pictures.add_argument(
      '--images', metavar='DIR', help='where the pictures are'
  )
  pictures.add_argument(
      '--jobs',
      type=int,
      metavar='N',
      help='processes that decode the pictures; default: one per core',
  )
  pictures.add_argument(
      '--on-error',
      choices=('stop', 'skip'),
      help='what to do if pictures are damaged: stop once all have been looked '
      'at (default), or leave them out',
  )
  pictures.add_argument(
      '--classes',
      metavar='FILE',
      help="of mini_imagenet, if DIR is ImageNet's train set: the 100 WordNet "
      'identifiers, one a line',
  )
  split = parser.add_argument_group('pictures that have no splits yet')
  for name in ('val', 'test'):
    split.add_argument(
        f'--{name}',
        type=float,
        metavar='SHARE',
        help=f'of folder: part of each class for {name}; default 0.1',
    )
  split.add_argument(
      '--seed', type=int, metavar='N', help='of the random split; default 0'
  )


def run(args: argparse.Namespace) -> int:
  """Prepares the data set; returns 0, or raises `UserError`."""
  _check_options(args)
  if 'images' in _OPTIONS[args.dataset]:
    _prepare_pictures(args)
  else:
    _prepare_known(args)
  return 0


def _prepare_known(args):
  if args.dataset == 'digits':
    print('digits: ships with this package, nothing to prepare')
  else:
    from gswinrmt_jax.data.prepare import cifar10

    cifar10.prepare(args.dir, args.archive)


def _check_options(args):
  if args.dataset not in _OPTIONS:
    near = difflib.get_close_matches(args.dataset, _OPTIONS, n=1)
    known = (
        f'did you mean {near[0]}?' if near else f'known: {", ".join(_OPTIONS)}'
    )
    if args.images:
      known += f'; of your own pictures: `prepare folder {args.dataset}`'
    raise UserError(f'unknown data set {args.dataset!r}; {known}')
  for key, value in vars(args).items():
    if key in ('dataset', 'dir', *_OPTIONS[args.dataset]) or value is None:
      continue
    what = f'NAME ({value!r})' if key == 'name' else _option(key)
    raise UserError(f'prepare {args.dataset} takes no {what}')


def _option(key):
  return f'--{key.replace("_", "-")}'


def _prepare_pictures(args):
  from gswinrmt_jax.data import parallel
  from gswinrmt_jax.data.prepare import class_folders, writer

  name = args.name if args.dataset == 'folder' else args.dataset
  if args.dataset == 'folder':
    class_folders.check_name(name)
  if not args.images:
    raise UserError(f'prepare {args.dataset} needs --images DIR')
  arguments.check_positive(args, 'jobs')
  writer.prepare(
      name,
      lambda: _find(args),
      data_dir=args.dir,
      jobs=args.jobs or parallel.cores(),
      skip_damaged=args.on_error == 'skip',
  )


def _find(args):
  from gswinrmt_jax.data.prepare import (
      class_folders,
      imagenet_files,
      mini_imagenet,
  )

  root = _path(args.images)
  if not root.is_dir():
    raise UserError(f'--images {args.images}: no such directory')
  if args.dataset == 'imagenet':
    return imagenet_files.find(root)
  if args.dataset == 'mini_imagenet':
    classes = args.classes and _path(args.classes)
    return mini_imagenet.find(root, classes=classes, seed=args.seed)
  return class_folders.find_and_divide(
      root, val=args.val, test=args.test, seed=args.seed
  )


def _path(text):
  return pathlib.Path(text).expanduser().absolute()
