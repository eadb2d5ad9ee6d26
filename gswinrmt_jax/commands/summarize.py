"""Lists models with parameters, multiply-accumulates and the papers' values.

MACs are multiply-accumulates of convolutions, linear layers and attention, plus
5 operations per element of a layer norm and 2 per element of a batch norm. The
RMT paper prints them in units of 2^30 and calls them GFLOPs; GMACs are units of
10^9. GFLOP counts two operations per multiply-accumulate, in units of 10^9.
Attention in windows is counted within the windows.

A name may be a pattern, such as 'retention_*'.

--dense lists the segmenters and detectors of the RMT paper. For these, its
FLOPs are MACs in units of 10^9 without attention, which the counters of
mmsegmentation and mmdetection do not see; the next column includes it. The
paper rounds or truncates its values. Parameters of UperNet include its
auxiliary head, which is used only in training. Heads on boxes are counted for
1,000 boxes and 100 masks.
"""

import argparse
import fnmatch
from typing import Any, NamedTuple

from gswinrmt_jax.commands import arguments
from gswinrmt_jax.errors import did_you_mean, UserError


class Setting(NamedTuple):
  """Where a paper uses a model, and the values it prints; '' for none."""

  num_classes: int = 1000
  image_size: int = 224
  parameters: str = ''
  macs: str = ''


_SETTINGS = {
    'rmt_t': Setting(1000, 224, '14 M', '2.5'),
    'rmt_s': Setting(1000, 224, '27 M', '4.5'),
    'rmt_b': Setting(1000, 224, '54 M', '9.7'),
    'rmt_l': Setting(1000, 224, '95 M', '18.2'),
    'rmt_s_tl': Setting(),
    'rmt_b_tl': Setting(),
    'rmt_l_tl': Setting(),
    'rmt_deit_s': Setting(),
    'rmt_swin_t': Setting(),
    'rmt_swin_s': Setting(),
    'rmt_compact': Setting(10, 32, '11.5 M'),
    'retention_compact': Setting(10, 32, '15.3 M'),
    'swat_compact': Setting(10, 32, '15.3 M'),
    'rmt_large': Setting(100, 224, '77.4 M'),
    'retention_large': Setting(100, 224, '78.1 M'),
    'swat_large': Setting(100, 224, '78.6 M'),
}

_ADE20K_CLASSES, _COCO_CLASSES = 150, 80
_COCO_SIZE = 800, 1280


class Dense(NamedTuple):
  """A segmenter or detector of the paper, with the values it prints."""

  head: str  # of `create_segmenter` or `create_detector`
  model: str  # the backbone
  size: tuple[int, int]  # height and width for which operations are counted
  parameters: str  # in millions
  macs: str  # in units of 10^9

  @property
  def classes(self) -> int:
    """Number of classes of ADE20K or COCO."""
    return _COCO_CLASSES if self.size == _COCO_SIZE else _ADE20K_CLASSES


_DENSE = (
    Dense('fpn', 'rmt_t', (512, 512), '17.0', '33.7'),
    Dense('fpn', 'rmt_s', (512, 2048), '30', '180'),
    Dense('fpn', 'rmt_b', (512, 2048), '57', '294'),
    Dense('fpn', 'rmt_l', (512, 2048), '98', '482'),
    Dense('uper', 'rmt_s', (512, 2048), '56', '937'),
    Dense('uper', 'rmt_b', (512, 2048), '83', '1051'),
    Dense('uper', 'rmt_l', (512, 2048), '125', '1241'),
    Dense('retina', 'rmt_t', _COCO_SIZE, '23', '199'),
    Dense('retina', 'rmt_s', _COCO_SIZE, '36', '244'),
    Dense('retina', 'rmt_b', _COCO_SIZE, '63', '355'),
    Dense('retina', 'rmt_l', _COCO_SIZE, '104', '537'),
    Dense('mask', 'rmt_t', _COCO_SIZE, '33', '218'),
    Dense('mask', 'rmt_s', _COCO_SIZE, '46', '262'),
    Dense('mask', 'rmt_b', _COCO_SIZE, '73', '373'),
    Dense('mask', 'rmt_l', _COCO_SIZE, '114', '557'),
    Dense('cascade', 'rmt_s', _COCO_SIZE, '83', '741'),
    Dense('cascade', 'rmt_b', _COCO_SIZE, '111', '852'),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add(
      'models',
      metavar='MODEL',
      nargs='*',
      help="names or patterns ('rmt_?') of " + ', '.join(_SETTINGS),
  )
  add('--all', action='store_true', help='every named model')
  add(
      '--dense',
      action='store_true',
      help='segmenters and detectors with these backbones (default: all)',
  )
  arguments.add_number(
      parser,
      '--image-size',
      help='count on N x N pixels (default: as in the paper of each model)',
  )


def setting(name: str) -> Setting:
  """Returns where a paper uses a model.

  Raises:
    UserError: If there is no such model; the message suggests the nearest.
  """
  if name not in _SETTINGS:
    near = did_you_mean(name, _SETTINGS)
    raise UserError(
        f"no model '{name}'{near or '; there are ' + ', '.join(_SETTINGS)}"
    )
  return _SETTINGS[name]


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  everything = args.all or (args.dense and not args.models)
  words = ['*'] if everything else args.models
  matched = (fnmatch.filter(_SETTINGS, word) or [word] for word in words)
  names = list(dict.fromkeys(name for found in matched for name in found))
  if not names:
    raise UserError('name a model, or --all')
  settings = {name: setting(name) for name in names}
  if args.dense:
    if args.image_size:
      raise UserError('--dense has the image sizes of the paper')
    _print_dense(names)
    return

  from gswinrmt_jax.models import cost, factory

  print(
      f'{"model":<20}{"classes":>8}{"pixels":>8}{"parameters":>13}'
      f'{"GMACs":>9}{"MACs/2^30":>11}{"GFLOP":>9}   paper'
  )
  for name, used in settings.items():
    size = args.image_size or used.image_size
    model = factory.create_model(name, num_classes=used.num_classes)
    try:
      counted = cost.count(model, (size, size))
    except ValueError as error:
      raise UserError(f'{name}: {error}') from error
    paper = used.parameters
    # The paper's MACs are for its own image size.
    if used.macs and size == used.image_size:
      paper += f', {used.macs} x 2^30'
    print(
        f'{name:<20}{used.num_classes:>8}{size:>8}{counted.parameters:>13,}'
        f'{counted.macs / 1e9:>9.3f}{counted.macs / 2**30:>11.3f}'
        f'{counted.flops / 1e9:>9.3f}   {paper or "-"}',
        flush=True,
    )


def _print_dense(names):
  """Prints the segmenters and detectors over the named models."""
  rows = [row for row in _DENSE if row.model in names]
  if not rows:
    known = ', '.join(dict.fromkeys(row.model for row in _DENSE))
    raise UserError(f'the paper has segmenters and detectors of {known} only')

  from gswinrmt_jax.models.dense import create

  print(
      f'{"head":<20}{"model":<7}{"classes":>8}{"pixels":>11}{"parameters":>13}'
      f'{"GMACs":>9}{"+ attention":>13}   paper'
  )
  for row in rows:
    counted = dense_cost(row)
    height, width = row.size
    print(
        f'{create.TITLES[row.head]:<20}{row.model:<7}'
        f'{row.classes:>8}{f"{height}x{width}":>11}'
        f'{counted.parameters:>13,}'
        f'{counted.macs_without_attention / 1e9:>9.1f}'
        f'{counted.macs / 1e9:>13.1f}   {row.parameters} M, {row.macs}',
        flush=True,
    )


def dense_cost(row: Dense) -> Any:
  """Returns the `cost.Cost` of a segmenter or detector."""
  from gswinrmt_jax.models import cost
  from gswinrmt_jax.models.dense import create

  head = {'head': row.head}
  model = create.create(row.model, head, num_classes=row.classes)
  return cost.count(model, row.size)
