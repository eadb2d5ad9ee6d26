"""Converts a PyTorch checkpoint of the released RMT, without PyTorch.

Writes a folder with an Orbax checkpoint and a config.json, which `evaluate`,
`predict`, `export`, `label-maps` and `--config.init_from` take. RMT-T, S, B and
L, and the token-label forms of the last three, are told from their shapes.
Prints what was loaded, and by name what was missing, left over or of another
shape.
"""

import argparse
import pathlib

from gswinrmt_jax.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  parser.add_argument('checkpoint', metavar='MODEL.pth', help='the checkpoint')
  parser.add_argument('out', metavar='OUT', help='folder to make')
  parser.add_argument(
      '--key',
      metavar='NAME',
      help='entry of the checkpoint to take, such as model_ema (default: '
      'model, state_dict or the like, whichever there is)',
  )
  parser.add_argument(
      '--full-stages',
      metavar='N,N',
      help='stages that attend over all pairs of tokens, for sizes that are '
      'none of the released (no array tells them)',
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  stages = args.full_stages
  if stages is not None:
    parts = [part for part in stages.split(',') if part]
    if not all(part.isdecimal() for part in parts):
      raise UserError(f"--full-stages is like 3,4, not '{stages}'")
    stages = tuple(int(part) for part in parts)

  from gswinrmt_jax.deploy import convert

  convert.convert(
      pathlib.Path(args.checkpoint),
      pathlib.Path(args.out),
      key=args.key,
      full_stages=stages,
  )
