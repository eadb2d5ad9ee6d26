"""Exports a run in every format and reads each file back in a new process.

  python experiments/exports.py RUN

Prints for each format the largest difference from the model's own logits on
five noise images, or why there is none: the model does not support the format,
or a library is missing. docs/weights.md has the table.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import jax
import numpy as np

from gswinrmt_jax.deploy import export
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import load, state_dict

# Programs that read the file `path` and save its logits for `pixels`, or its
# arrays, to `result`. All but the first run without this package.
_READERS = {
    'safetensors': """
import gswinrmt_jax
loaded = gswinrmt_jax.load_model(path)
mean, std = map(np.float32, (loaded.card.mean, loaded.card.std))
images = (pixels / np.float32(255) - mean) / std
logits = loaded.model.apply(loaded.variables, images, train=False)
np.savez(result, logits=logits)
""",
    'torch': """
import torch
arrays = torch.load(path, weights_only=True)['model']
np.savez(result, **{name: array.numpy() for name, array in arrays.items()})
""",
    'stablehlo': """
import jax.export
program = jax.export.deserialize(open(path, 'rb').read())
np.savez(result, logits=program.call(pixels))
""",
    'onnx': """
import onnxruntime
session = onnxruntime.InferenceSession(
    path, providers=['CPUExecutionProvider']
)
name = session.get_inputs()[0].name
np.savez(result, logits=session.run(None, {name: pixels})[0])
""",
}
_READERS['safetensors-float16'] = _READERS['safetensors']
_BEGIN = """
import sys
import numpy as np
path, pixels, result = sys.argv[1:]
pixels = np.load(pixels)
"""


def difference(
    run: load.Weights, file_format: str, folder: pathlib.Path
) -> float:
  """Returns the largest difference of logits after exporting and reading.

  Args:
    run: The weights.
    file_format: One of `export.FORMATS`.
    folder: Folder for the files.

  Raises:
    UserError: If the weights cannot be exported, or the file cannot be read.
  """
  path = export.export(run, file_format, folder, Terminal(sys.stderr))
  height, width = run.card.image_size
  rng = np.random.default_rng(1)
  pixels = rng.integers(0, 256, (5, height, width, 3), np.uint8)
  np.save(folder / 'pixels.npy', pixels)
  files = [path, folder / 'pixels.npy', folder / 'read.npz']
  done = subprocess.run(
      [sys.executable, '-c', _BEGIN + _READERS[file_format], *map(str, files)],
      stderr=subprocess.PIPE,
      text=True,
  )
  if done.returncode:
    raise UserError(f'cannot be read: {done.stderr.splitlines()[-1]}')
  read = dict(np.load(files[-1]))
  program = jax.jit(export.make_program(run))
  if file_format == 'torch':
    variables = state_dict.from_torch_state_dict(read, run.card.make_model())
    read['logits'] = program(pixels, variables)
  return float(np.abs(read['logits'] - program(pixels, run.variables)).max())


def main(source: str) -> None:
  """Prints a line for each format."""
  run = load.load(pathlib.Path(source), warn=Terminal(sys.stderr).say)
  for file_format in export.FORMATS:
    with tempfile.TemporaryDirectory() as folder:
      try:
        said = f'{difference(run, file_format, pathlib.Path(folder)):.2g}'
      except UserError as error:
        said = f'skipped: {error}'
    print(f'{file_format:<20} {said}', flush=True)


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('run', metavar='RUN')
  main(parser.parse_args().run)
