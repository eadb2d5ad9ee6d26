"""Exports weights and programs for other software, and checks each file.

`model.stablehlo` runs without this package, on CPU and CUDA, for any batch:

    data = pathlib.Path('model.stablehlo').read_bytes()
    logits = jax.export.deserialize(data).call(pixels)  # uint8 [b h w 3]

A detector's program returns a dictionary of `boxes`, x0 y0 x1 y1 in pixels of
its input, `scores`, `labels` and, if it finds any, `masks`, the probabilities
in the cells of each box. Suppression is inside. Objects are ordered by their
scores and not cut off at any: the caller chooses the least score.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import json
import logging
import pathlib
import tempfile
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8
import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import checksums
from gswinrmt_jax.deploy import model_card
from gswinrmt_jax.deploy.loaded_model import PixelModel
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models.layers import plain_convolutions
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import load, safetensors_file, state_dict, torch_file
from gswinrmt_jax.weights.load import Weights

# Tolerances, relative to the largest value. Of a program's outputs, as other
# kernels round differently, by about 1e-6.
_ROUNDING = 5e-5
# Of arrays in float16, which near 1e-6, where LayerScale starts, has steps of
# 6e-8.
_HALF_STEP = 5e-2
_CHECKSUM = 'crc32'  # of the arrays, in `config.json`
_PLATFORMS = ('cpu', 'cuda')  # of stablehlo


def export(
    weights: Weights,
    file_format: str,
    folder: pathlib.Path,
    terminal: Terminal | None = None,
    *,
    license: str = '',
    note: str = '',
    source: str = '',
) -> pathlib.Path:
  """Writes weights in one format, with `config.json` and a model card.

  Args:
    weights: The weights to write.
    file_format: One of `FORMATS`.
    folder: Created if it does not exist; files of the same format are replaced.
    terminal: Where the file and its error are printed.
    license: Licence for the model card.
    note: Note for the model card.
    source: Where the weights will be loaded from, for the example of the model
      card; '' for the folder.

  Returns:
    The path of the file.

  Raises:
    UserError: If weights are not finite, the model does not support the format,
      a library is missing, the folder holds other files, or what is read back
      differs: the arrays of weights, the outputs of a program. The folder is
      then unchanged.
  """
  terminal = terminal or Terminal()
  weights.check_finite()
  name, write, tolerance = _FORMATS[file_format]
  detects, what = weights.task == 'detection', 'arrays'
  if detects and file_format == 'onnx':
    raise UserError(
        'a detector cannot be exported to onnx: choose --format=stablehlo'
    )
  if is_program := file_format in ('stablehlo', 'onnx'):
    what = 'detections' if detects else 'logits'
  # A config.json or README.md that no export wrote is kept.
  ours = {card_lib.FILE: card_lib.read, model_card.FILE: model_card.is_one}
  for file, is_ours in ours.items():
    if (folder / file).exists() and not is_ours(folder / file):
      raise UserError(
          f'{folder / file} was not written by an export: choose another '
          'folder (--out)'
      )
  _check_other_files(weights, folder, name)
  files.check_can_write(folder / name)
  source, folder = source or str(folder), folder.absolute()
  folder.parent.mkdir(parents=True, exist_ok=True)
  # An existing file is replaced only by one that was checked. The folder may be
  # on another disk than its parent.
  beside = folder if folder.is_dir() else folder.parent
  with tempfile.TemporaryDirectory(
      prefix=f'.{folder.name}.', dir=beside
  ) as place:
    written = pathlib.Path(place) / name
    with contextlib.ExitStack() as stack:
      stack.enter_context(
          terminal.busy(f'Writing {name} and comparing its {what}')
      )
      if file_format == 'stablehlo':
        weights = _on_cpu(weights, stack)
      found = write(weights, written)
      if file_format == 'onnx':  # computed by a CPU, and not in TF32
        stack.enter_context(jax.default_matmul_precision('highest'))
      expected = dict(weights.variables)
      if is_program:
        expected = model_outputs(weights)
      said = _compare(name, what, found, expected, tolerance)
    folder.mkdir(exist_ok=True)
    path = folder / name
    with files.replaced(path) as part:
      written.rename(part)
  checksum = {_CHECKSUM: _checksum(weights.variables)}
  files.write_json(
      folder / card_lib.FILE, {**weights.card.to_dict(), **checksum}
  )
  model_card.write(
      folder, weights, file_format, license=license, note=note, source=source
  )
  terminal.say(
      f'{weights.origin}: written to {path} '
      f'({path.stat().st_size / 1e6:.1f} MB); {said}.'
  )
  return path


def _on_cpu(weights, stack):
  """Returns weights for programs that are compared on a CPU, if there is one.

  A GPU may compute in TF32, in which two programs of one model may differ by
  more than the tolerance.
  """
  try:
    cpu, *_ = jax.local_devices(backend='cpu')
  except RuntimeError:  # JAX_PLATFORMS names others.
    return weights
  stack.enter_context(jax.default_device(cpu))
  return dataclasses.replace(
      weights, variables=jax.device_get(weights.variables)
  )


def _compare(name, what, found, expected, tolerance):
  """Says by how much values differ, and refuses more than the tolerance."""
  found, expected = jax.device_get((found, expected))
  pairs = [*zip(*map(jax.tree.leaves, (found, expected)), strict=True)]
  differences = [float(np.abs(a - b).max()) for a, b in pairs]
  difference = float(np.max(differences))  # NaN, if any is
  # NaN has to fail this comparison.
  if not all(
      error <= tolerance * float(np.abs(array).max())
      for error, (_, array) in zip(differences, pairs, strict=True)
  ):
    raise UserError(
        f'{name} gave {what} that differ by {difference:.2g} from the '
        "model's own; it was not kept"
    )
  return f"{what} differ by {difference:.2g} from the model's own"


def make_program(weights: Weights) -> Callable[[UInt8[Array, 'b h w 3']], Any]:
  """Returns the function that is exported, from pixels to logits.

  It computes in float32 and normalises images as the card says. Logits are
  `[b k]` from a classifier, `[b h w k]` from a segmenter. A detector returns
  its detections by name instead, see above.
  """
  model = _pixel_model(weights)
  return lambda pixels: _program(model, pixels, weights.variables)


def _check_other_files(weights, folder, name):
  """Refuses a folder whose other formats are of other weights.

  A folder has one `config.json`, and no array shows all that it says.
  """
  there = [
      other
      for other, *_ in _FORMATS.values()
      if other != name and (folder / other).exists()
  ]
  path = folder / card_lib.FILE
  if not there or not path.exists():
    return
  checksum = files.read_json(path).get(_CHECKSUM)
  # As it would be read back: the file also has the version of the package. The
  # figures of one checkpoint grow, such as by those of the test split.
  written = json.loads(json.dumps(weights.card.to_dict()))
  before, now = (
      json.dumps(
          dataclasses.replace(card, figures={}).to_dict(), sort_keys=True
      )
      for card in (
          card_lib.read(path),
          card_lib.from_dict(written, str(path)),
      )
  )
  other = checksum is not None and checksum != _checksum(weights.variables)
  if before != now or other:
    raise UserError(
        f'{folder / there[0]} is of other weights: choose another folder '
        '(--out), or remove it'
    )


def _checksum(variables):
  """Returns the CRC-32 of all arrays in float16, to which a file may round."""
  with np.errstate(over='ignore'):
    half = [np.float16(array) for array in jax.tree.leaves(dict(variables))]
  return checksums.of_tree(half)


def _pixel_model(weights):
  card, model = weights.card, weights.card.make_model(dtype='float32')
  if card.task == 'detection':  # Noise would not reach the usual least score.
    model = model.clone(head=model.head.clone(least_score=0.0))
  return PixelModel(model, card.mean, card.std)


def _program(model, pixels, variables):
  found = model.apply(variables, pixels)
  if isinstance(found, tuple):  # detections
    return found.arrays()
  return found


_compiled = jax.jit(_program, static_argnums=0)


def sample_pixels(weights: Weights) -> UInt8[np.ndarray, '2 h w 3']:
  """Returns the two noise images on which programs are checked."""
  height, width = weights.card.image_size
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (2, height, width, 3), np.uint8)


def model_outputs(weights: Weights) -> Any:
  """Returns the model's own logits or detections of `sample_pixels`."""
  pixels = jnp.asarray(sample_pixels(weights))
  found = _compiled(_pixel_model(weights), pixels, weights.variables)
  return jax.device_get(found)


# Each of these functions writes one file, and returns the variables that it
# holds or the outputs of its program.


def _write_safetensors(weights, path):
  safetensors_file.write(path, weights.variables, weights.card)
  return load.load(path).variables


def _write_half(weights, path):
  """Writes parameters in float16; statistics keep their precision."""
  half = jax.tree.map(
      lambda leaf: np.asarray(leaf, np.float16), weights.variables['params']
  )
  variables = {**weights.variables, 'params': half}
  return _write_safetensors(
      dataclasses.replace(weights, variables=variables), path
  )


def _write_torch(weights, path):
  """Writes a state dict that the released RMT code loads.

  A segmenter's uses the names and the top-level key of mmsegmentation, a
  detector's those of mmdetection.
  """
  model = weights.card.make_model()
  dense = weights.task != 'classification'
  entry = 'state_dict' if dense else 'model'
  try:
    arrays = state_dict.to_torch_state_dict(weights.variables, model)
  except ValueError as error:
    raise UserError(f'{error} Choose another --format.') from error
  torch_file.write(path, {entry: arrays})
  return state_dict.from_torch_state_dict(torch_file.read(path)[entry], model)


def _write_stablehlo(weights, path):
  """Writes a program with its weights, for CPU and CUDA and any batch size."""
  try:
    import flatbuffers  # noqa: F401  undeclared dependency of jax.export
    from jax import export as jax_export
  except ImportError as error:
    raise UserError(
        f"{error.name} is missing: pip install 'gswinrmt_jax[export]'"
    ) from error
  height, width = weights.card.image_size
  (batch,) = jax_export.symbolic_shape('b')
  pixels = jax.ShapeDtypeStruct((batch, height, width, 3), jnp.uint8)
  program = jax.jit(make_program(weights))
  exported = jax_export.export(program, platforms=_PLATFORMS)(pixels)
  path.write_bytes(exported.serialize())
  read = jax_export.deserialize(path.read_bytes())
  return jax.device_get(read.call(jnp.asarray(sample_pixels(weights))))


def _write_onnx(weights, path):
  """Writes the program in float32, for runtimes other than JAX."""
  try:
    import jax2onnx
    import onnxruntime
  except ImportError as error:
    raise UserError(
        f"{error.name} is missing: pip install 'gswinrmt_jax[onnx]'"
    ) from error
  # It warns about every shape that is known only at run time.
  logging.getLogger('onnx_ir').setLevel(logging.ERROR)
  height, width = weights.card.image_size
  program = make_program(weights)
  try:
    # Runtimes are fast at convolutions, not at shifted sums.
    with nn.intercept_methods(plain_convolutions):
      model = jax2onnx.to_onnx(
          program,
          inputs=[jax.ShapeDtypeStruct(('b', height, width, 3), np.uint8)],
          model_name=weights.card.name,
      )
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(
        path, providers=['CPUExecutionProvider']
    )
    name = session.get_inputs()[0].name
    (logits,) = session.run(None, {name: sample_pixels(weights)})
  except OSError:
    raise
  # Of the converter's or the runtime's own kinds, as for UperNet's pooling.
  except Exception as error:
    said = str(error).strip().splitlines() or [type(error).__name__]
    raise UserError(
        f'{weights.origin} cannot be converted to ONNX ({said[0][:160]}): '
        'choose --format=stablehlo'
    ) from error
  return logits


# Format -> file name, writer, and relative tolerance.
_FORMATS = {
    'safetensors': (safetensors_file.NAME, _write_safetensors, 0.0),
    'safetensors-float16': (safetensors_file.NAME, _write_half, _HALF_STEP),
    'torch': ('pytorch_model.pth', _write_torch, 0.0),
    'stablehlo': ('model.stablehlo', _write_stablehlo, _ROUNDING),
    'onnx': ('model.onnx', _write_onnx, _ROUNDING),
}
FORMATS = tuple(_FORMATS)
