"""Exports a model to a format for other software, and checks it.

  safetensors          arrays that `gswinrmt_jax.load_model` reads
  safetensors-float16  the same with parameters in half precision
  torch                a PyTorch state dict for the released RMT (RMT only)
  stablehlo            a jax.export program for CPU and CUDA (extra: export)
  onnx                 a float32 program for other runtimes (extra: onnx)

The programs take uint8 pixels [b, h, w, 3] with any b and return logits; that
of a detector (stablehlo only) returns boxes, scores, labels and any masks, best
first, after suppression. config.json and a model card with the measured results
are written next to the file. The file is read back: its arrays, or the outputs
of a program, are compared with the model's.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments

_FORMATS = ('safetensors', 'safetensors-float16', 'torch', 'stablehlo', 'onnx')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  add = parser.add_argument
  add('--format', required=True, choices=_FORMATS, help='see above')
  add(
      '--out',
      type=arguments.path,
      metavar='DIR',
      help='folder to write into (default: export, next to the weights)',
  )
  arguments.add_about(parser)


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  from gswinrmt_jax.deploy import export

  weights = arguments.load_weights(args)
  out = args.out and pathlib.Path(args.out)
  folder = out or weights.folder / 'export'
  export.export(
      weights, args.format, folder, license=args.license, note=args.note
  )
