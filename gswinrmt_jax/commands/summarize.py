"""Lists models with parameters, multiply-accumulates and the papers' values.

MACs are multiply-accumulates of convolutions, linear layers and attention, plus
5 operations per element of a layer norm and 2 per element of a batch norm. The
RMT paper prints them in units of 2^30 and calls them GFLOPs; GMACs are units of
10^9. GFLOP counts two operations per multiply-accumulate, in units of 10^9.
Attention in windows is counted within the windows.

A name may be a pattern, such as 'retention_*'.
"""

import argparse
import fnmatch
from typing import NamedTuple

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
  words = ['*'] if args.all else args.models
  matched = (fnmatch.filter(_SETTINGS, word) or [word] for word in words)
  names = list(dict.fromkeys(name for found in matched for name in found))
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
