"""Writes a model in a form that others read, and checks it.

  safetensors  model.safetensors, which `gswinrmt_jax.load_model` reads
  torch        a PyTorch state dict that the released RMT loads (RMT only)
  stablehlo    a jax.export program for CPU and CUDA, any batch (extra: export)
  onnx         the program in float32 for other runtimes (extra: onnx)

The programs take uint8 pixels [b, h, w, 3] and return logits. config.json and a
model card with the measured figures are written beside. What was written is
read back, and its logits are compared with the model's own.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments, guard
from gswinrmt_jax.errors import UserError

_FORMATS = ('safetensors', 'torch', 'stablehlo', 'onnx')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  parser.add_argument(
      '--format',
      required=True,
      metavar='|'.join(_FORMATS),
      help='what to write',
  )
  parser.add_argument(
      '--out',
      metavar='DIR',
      help='folder to write into (default: export, beside the weights)',
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  if args.format not in _FORMATS:
    raise UserError(f"--format is {', '.join(_FORMATS)}, not '{args.format}'")

  step = arguments.step(args)

  # Imported here: --help need not wait for JAX.
  from gswinrmt_jax.deploy import export
  from gswinrmt_jax.weights import load

  loaded = load.load(
      pathlib.Path(args.weights),
      step=step,
      which=args.which,
      warn=guard.complain,
  )
  folder = pathlib.Path(args.out) if args.out else loaded.folder / 'export'
  export.export(loaded, args.format, folder)
