"""Lists models: parameters, multiply-accumulates, and the papers' figures.

MACs are multiply-accumulates of convolutions, linear layers and attention, with
5 and 2 operations per element of a layer norm and a batch norm. The RMT paper
prints them in units of 2^30 and calls them GFLOPs; GMACs are units of 10^9.
GFLOP counts two operations for a multiply-accumulate, in units of 10^9.
Attention in windows is counted by its windows.
"""

import argparse
from typing import NamedTuple

from gswinrmt_jax.commands import arguments
from gswinrmt_jax.errors import UserError


class Setting(NamedTuple):
  """Where a paper uses a model, and the figures it prints, '' for none."""

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  names = ', '.join(_SETTINGS)
  parser.add_argument('models', metavar='MODEL', nargs='*', help=names)
  parser.add_argument('--all', action='store_true', help='every named model')
  arguments.add_number(
      parser,
      '--image-size',
      help='count on N x N pixels (default: as in the paper of each model)',
  )


def setting(name: str) -> Setting:
  """Returns where a paper uses a model.

  Raises:
    UserError: If there is no such model; suggests the nearest.
  """
  if name not in _SETTINGS:
    near = arguments.did_you_mean(name, _SETTINGS)
    raise UserError(
        f"no model '{name}'{near or '; there are ' + ', '.join(_SETTINGS)}"
    )
  return _SETTINGS[name]


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  names = list(_SETTINGS) if args.all else args.models
  if not names:
    raise UserError('name a model, or --all')
  settings = {name: setting(name) for name in names}

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
    # The paper's MACs are for its own image size.
    macs = used.macs if size == used.image_size else ''
    macs = f'{macs} x 2^30' if macs else ''
    paper = ', '.join(filter(None, (used.parameters, macs)))
    print(
        f'{name:<20}{used.num_classes:>8}{size:>8}{counted.parameters:>13,}'
        f'{counted.macs / 1e9:>9.3f}{counted.macs / 2**30:>11.3f}'
        f'{counted.flops / 1e9:>9.3f}   '
        f'{paper or "-"}',
        flush=True,
    )
