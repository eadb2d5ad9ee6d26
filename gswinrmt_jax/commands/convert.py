"""Converts a PyTorch checkpoint of the released RMT, without PyTorch.

Writes a folder with model.safetensors and config.json, for `evaluate`,
`predict`, `export` and `--config.init_from`. RMT-T, S, B and L, and the
token-label models of the last three, are recognised by their shapes. So are
segmenters, Semantic FPN or UperNet over an RMT as mmsegmentation stores them,
and detectors, RetinaNet, Mask R-CNN or Cascade Mask R-CNN as mmdetection stores
them; `analyze` does not take these. Prints the number of arrays loaded, and the
names of arrays that are missing, left over, of another shape or not finite.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments
from gswinrmt_jax.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add(
      'checkpoint',
      type=arguments.path,
      metavar='MODEL.pth',
      help='the checkpoint',
  )
  add('out', type=arguments.path, metavar='OUT', help='folder to create')
  add(
      '--key',
      metavar='NAME',
      help='entry of the checkpoint or prefix of its names, such as model_ema '
      'or state_dict/ema (default: model, state_dict or the like)',
  )
  add(
      '--full-stages',
      type=_stages,
      metavar='N,N',
      help='stages that attend over all pairs of tokens, or none; required for '
      'models of other sizes than the released ones, because no array shows '
      'them; takes precedence over those of a config.json next to the '
      'checkpoint',
  )


def _stages(text):
  if text == 'none':
    return ()
  parts = text.split(',')
  if not all(part.isdecimal() for part in parts):
    raise UserError(
        f"--full-stages is '{text}': must be stages such as 3,4, or none"
    )
  return tuple(int(part) for part in parts)


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  from gswinrmt_jax.deploy import convert

  convert.convert(
      pathlib.Path(args.checkpoint),
      pathlib.Path(args.out),
      key=args.key,
      full_stages=args.full_stages,
  )
