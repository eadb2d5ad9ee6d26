"""Weights and models in the forms that others read, each checked.

Every format is one file here with `write(weights, folder)`, which returns the
file and the logits that what was written gives for `served.samples`.
"""

import importlib
import pathlib

import numpy as np

from gswinrmt_jax.deploy import model_card, served
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interop import card as card_lib
from gswinrmt_jax.training import log, run_folder
from gswinrmt_jax.training.weights import Weights

# Format -> its module here, and how far its logits may be from the model's own.
# Other kernels round otherwise; the same arrays do not.
_FORMATS = {
    'safetensors': ('export_safetensors', 0.0),
    'torch': ('export_torch', 0.0),
    'stablehlo': ('export_stablehlo', 1e-3),
    'onnx': ('export_onnx', 1e-3),
}
FORMATS = tuple(_FORMATS)


def export(
    weights: Weights,
    form: str,
    folder: pathlib.Path,
    terminal: log.Terminal | None = None,
) -> pathlib.Path:
  """Writes weights in one format, with `config.json` and a model card.

  Args:
    weights: What to write.
    form: One of `FORMATS`.
    folder: Made if it is not there; files of the same format are replaced.
    terminal: Told what was written, and the difference of the logits.

  Returns:
    The file.

  Raises:
    UserError: If the model has no such form, a library is missing, or what was
      written gives other logits; then nothing is left of it.
  """
  terminal = terminal or log.Terminal()
  module, tolerance = _FORMATS[form]
  writer = importlib.import_module(f'gswinrmt_jax.deploy.{module}')
  folder.mkdir(parents=True, exist_ok=True)
  path, got = writer.write(weights, folder)
  want = served.logits(weights)
  difference = float(np.abs(got - want).max())
  # Written so that NaN fails.
  if not difference <= tolerance * max(1.0, float(np.abs(want).max())):
    path.unlink()
    raise UserError(
        f'{path} gave logits that differ by {difference:.2g} from the '
        "model's own; it was removed"
    )
  run_folder.write_json(folder / card_lib.FILE, weights.card.to_dict())
  model_card.write(folder, weights)
  terminal.say(
      f'Written to {path} ({path.stat().st_size / 1e6:.1f} MB): logits differ '
      f"by {difference:.2g} from the model's own."
  )
  return path
