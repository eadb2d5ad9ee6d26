"""Weights and models in the forms that others read, each checked.

Every format is one file here with `write(weights, folder)`, which returns the
file and the logits that what was written gives for `served.samples`.
"""

import importlib
import pathlib
import tempfile

import numpy as np

from gswinrmt_jax.deploy import model_card, served
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log, run_folder
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import folder as weights_folder
from gswinrmt_jax.weights.load import Weights

# Format -> its module here, and how far its logits may be from the model's own,
# over the largest of them. Other kernels round otherwise, by some 1e-6; the
# same arrays do not.
_FORMATS = {
    'safetensors': ('export_safetensors', 0.0),
    'torch': ('export_torch', 0.0),
    'stablehlo': ('export_stablehlo', 5e-5),
    'onnx': ('export_onnx', 5e-5),
}
FORMATS = tuple(_FORMATS)


def export(
    weights: Weights,
    form: str,
    folder: pathlib.Path,
    terminal: metrics_log.Terminal | None = None,
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
    UserError: If the model has no such form, a library is missing, the folder
      is something else's, or what was written gives other logits; then the
      folder is as it was.
  """
  terminal = terminal or metrics_log.Terminal()
  _check_folder(folder)
  module, tolerance = _FORMATS[form]
  writer = importlib.import_module(f'gswinrmt_jax.deploy.{module}')
  folder = folder.absolute()
  folder.parent.mkdir(parents=True, exist_ok=True)
  # What is there is replaced by what has been checked, or not at all.
  with tempfile.TemporaryDirectory(
      prefix=f'.{folder.name}.', dir=folder.parent
  ) as place:
    part, got = writer.write(weights, pathlib.Path(place))
    want = served.logits(weights)
    difference = float(np.abs(got - want).max())
    # Written so that NaN fails.
    if not difference <= tolerance * float(np.abs(want).max()):
      raise UserError(
          f'{part.name} gave logits that differ by {difference:.2g} from the '
          "model's own; it was not kept"
      )
    folder.mkdir(exist_ok=True)
    path = part.replace(folder / part.name)
  run_folder.write_json(folder / card_lib.FILE, weights.card.to_dict())
  model_card.write(folder, weights, form)
  terminal.say(
      f'{weights.origin}: written to {path} '
      f'({path.stat().st_size / 1e6:.1f} MB); logits differ by '
      f"{difference:.2g} from the model's own."
  )
  return path


def _check_folder(folder):
  """Refuses a folder whose config.json or README.md is not of an export."""
  config, readme = folder / card_lib.FILE, folder / model_card.FILE
  foreign = (
      weights_folder.is_one(folder)
      or (config.exists() and not card_lib.is_card(card_lib.read(config)))
      or (readme.exists() and not model_card.is_one(readme))
  )
  if foreign:
    raise UserError(
        f'{folder} has files of something else: choose another --out'
    )
