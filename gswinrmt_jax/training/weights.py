"""Weights from wherever they are: a run, a folder of weights, a file."""

from collections.abc import Callable, Mapping
import dataclasses
import json
import pathlib
from typing import Any

from flax import linen as nn
import ml_collections

from gswinrmt_jax.data import datasets, imagenet
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interop import card as card_lib
from gswinrmt_jax.interop import (
    recognition,
    safetensors_file,
    state_dict,
    torch_file,
)
from gswinrmt_jax.models import factory
from gswinrmt_jax.training import (
    build,
    checkpoint,
    devices,
    run_folder,
    weights_folder,
)

_TORCH_SUFFIXES = ('.pth', '.pt', '.bin')
_FOUND = 'a run, a folder of weights, a .safetensors file or a .pth file'


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights with all that is known of them.

  Attributes:
    variables: `{'params', 'batch_stats'}`, float32.
    card: The model they are for.
    origin: Where they are from, for people.
    folder: Where what is said of them is written.
    step: Of the run; None where there was no run.
    epoch: Likewise.
    recipe: Likewise.
  """

  variables: Mapping[str, Any]
  card: card_lib.Card
  origin: str
  folder: pathlib.Path
  step: int | None = None
  epoch: int | None = None
  recipe: ml_collections.ConfigDict | None = None

  def make_model(self, image_size: tuple[int, int] | None = None) -> nn.Module:
    """Returns the model, tried on images of this size or of the card's.

    Raises:
      UserError: If it does not take such images.
    """
    return _make_model(self.card, image_size or self.card.image_size)


def load(
    path: pathlib.Path,
    *,
    step: int | str = 'best',
    warn: Callable[[str], None] = print,
) -> Weights:
  """Returns weights, a copy on each device.

  Args:
    path: A run folder, one of its checkpoints (RUN/checkpoints/STEP), a folder
      of weights, a `.safetensors` file, or a `.pth` file of RMT.
    step: Of a run: 'best', 'latest' or a number.
    warn: Told, in a line, which damaged checkpoints were passed over.

  Raises:
    UserError: If there are no weights that can be read.
  """
  path = pathlib.Path(path)
  if not path.exists():
    raise UserError(f'{path} does not exist; it should be {_FOUND}')
  if path.parent.name == 'checkpoints' and path.name.isdecimal():
    path, step = path.parent.parent, int(path.name)
  if path.is_dir():
    inside = path / 'model.safetensors'
    if weights_folder.is_one(path):
      return _placed(*weights_folder.read(path), path, path)
    if inside.exists():
      return _placed(*safetensors_file.read(inside), inside, path)
    return _from_run(path, step, warn)
  if path.suffix == '.safetensors':
    return _placed(*safetensors_file.read(path), path, path.parent)
  if path.suffix in _TORCH_SUFFIXES:
    return _placed(*_from_torch(path), path, path.parent)
  raise UserError(f'{path} is not {_FOUND}')


def load_model(
    path: str | pathlib.Path, *, step: int | str = 'best'
) -> tuple[nn.Module, Mapping[str, Any]]:
  """Returns a model and its weights, for `model.apply`.

  Args:
    path: As in `load`.
    step: As in `load`.

  Raises:
    UserError: If there are no weights that can be read.
  """
  found = load(pathlib.Path(path), step=step)
  return found.make_model(), found.variables


def _placed(variables, card, origin, folder):
  return Weights(
      devices.Devices().replicate(variables), card, str(origin), folder
  )


def _from_run(folder, step, warn):
  recipe = build.resolve(run_folder.load_config(folder))
  card = run_card(folder, recipe)
  directory = folder / 'checkpoints'
  checkpoints = checkpoint.Checkpoints(directory, read_only=True, warn=warn)
  model = _make_model(card, card.image_size)
  target = devices.Devices().target(
      factory.variable_shapes(model, (*card.image_size, 3))
  )
  if step == 'best':
    restored = checkpoints.restore_best(target)
  elif step == 'latest':
    restored = checkpoints.restore_latest(target)
  else:
    restored = checkpoints.restore(step, target)
  if restored is None:
    raise UserError(f'{folder} has no checkpoints yet')
  epoch = restored.meta['epoch']
  return Weights(
      variables=restored.tree,
      card=card,
      origin=f'{folder}, step {restored.step} (epoch {epoch})',
      folder=folder,
      step=restored.step,
      epoch=epoch,
      recipe=recipe,
  )


def _make_model(card, image_size):
  config = ml_collections.ConfigDict(
      {'model': {'name': card.name, **card.fields}, 'dtype': card.dtype}
  )
  return build.make_model(config, card.num_classes, (*image_size, 3))


def run_card(
    folder: pathlib.Path, recipe: ml_collections.ConfigDict
) -> card_lib.Card:
  """Returns the card of a run's weights, with the figures of its summary."""
  info = datasets.info(recipe.data.name)
  summary = folder / 'summary.json'
  fields = recipe.model.to_dict()
  return card_lib.Card(
      name=fields.pop('name'),
      fields=fields,
      num_classes=len(info.class_names),
      class_names=info.class_names,
      image_size=info.image_size,
      mean=info.mean,
      std=info.std,
      dtype=recipe.dtype,
      figures=json.loads(summary.read_text()) if summary.exists() else {},
  )


def _from_torch(path):
  _, arrays, _ = recognition.unwrap(torch_file.read(path))
  card = released_card(recognition.recognise(arrays))
  try:
    variables = state_dict.from_torch_state_dict(arrays, card.make_model())
  except ValueError as error:
    raise UserError(
        f'{path}: {error}; gswinrmt convert takes what fits'
    ) from error
  return variables, card


def released_card(found: recognition.Recognised) -> card_lib.Card:
  """Returns the card of a released model: ImageNet's images, and classes."""
  named = found.num_classes == imagenet.NUM_CLASSES
  return card_lib.Card(
      name=found.name,
      fields=factory.resolve(found.name, found.fields),
      num_classes=found.num_classes,
      class_names=imagenet.classes() if named else (),
      image_size=imagenet.IMAGE_SIZE,
      mean=imagenet.MEAN,
      std=imagenet.STD,
      crop=imagenet.CROP,
  )
