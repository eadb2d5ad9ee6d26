"""Weights from wherever they are: a run, a folder of weights, a file."""

from collections.abc import Callable, Mapping
import dataclasses
import pathlib
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_collections

from gswinrmt_jax.checkpoints import checkpointer, raw_and_ema
from gswinrmt_jax.data import datasets
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.runs import dataset_record, run_folder, summary
from gswinrmt_jax.train import build
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import folder as weights_folder
from gswinrmt_jax.weights import hub, rmt_checkpoint, safetensors_file

_TORCH_SUFFIXES = ('.pth', '.pt', '.bin')
_KINDS = {raw_and_ema.RAW: 'raw', raw_and_ema.EMA: 'EMA'}  # for people
_FOUND = (
    'a run, a folder of weights, a .safetensors file, a .pth file or '
    f'{hub.PREFIX}OWNER/NAME'
)


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
    which: Likewise: 'raw', or 'ema' for their moving average.
  """

  variables: Mapping[str, Any]
  card: card_lib.Card
  origin: str
  folder: pathlib.Path
  step: int | None = None
  epoch: int | None = None
  recipe: ml_collections.ConfigDict | None = None
  which: str | None = None

  def make_model(self, image_size: tuple[int, int] | None = None) -> nn.Module:
    """Returns the model, tried on images of this size or of the card's.

    Raises:
      UserError: If it does not take such images.
    """
    return _make_model(self.card, image_size or self.card.image_size)

  def check_classes(self, info: datasets.Info) -> None:
    """Checks that data have the classes that the weights are for.

    Raises:
      UserError: If their number, or their names where both say them, differ.
    """
    card = self.card
    if card.num_classes != len(info.class_names):
      raise UserError(
          f'{self.origin} tells {card.num_classes} classes apart, {info.name} '
          f'has {len(info.class_names)}'
      )
    if card.class_names and card.class_names != info.class_names:
      raise UserError(
          f'{self.origin} knows {", ".join(card.class_names[:3])} ..., '
          f'{info.name} has {", ".join(info.class_names[:3])} ...'
      )


def load(
    path: pathlib.Path,
    *,
    step: int | str = 'best',
    which: str | None = None,
    warn: Callable[[str], None] = print,
) -> Weights:
  """Returns weights, a copy on each device.

  Args:
    path: A run folder, one of its checkpoints (RUN/checkpoints/STEP), a folder
      of weights, a `.safetensors` file, a `.pth` file of RMT, or the name of
      a repository, `hf-hub:OWNER/NAME`.
    step: Of a run: 'best', 'latest' or a number.
    which: Of a run: 'raw', or 'ema' for the moving average; None takes what
      was the better on validation data at that step.
    warn: Told, in a line, which damaged checkpoints, and how many arrays, were
      passed over.

  Raises:
    UserError: If there are no weights that can be read.
  """
  path = pathlib.Path(path)
  if str(path).startswith(hub.PREFIX):
    found = load(hub.fetch(str(path)), step=step, which=which, warn=warn)
    return dataclasses.replace(found, origin=str(path), folder=pathlib.Path())
  if not path.exists():
    raise UserError(f'{path} does not exist; it should be {_FOUND}')
  if path.parent.name == 'checkpoints' and path.name.isdecimal():
    return _from_run(path.parent.parent, int(path.name), which, warn)
  if path.is_dir() and not _has_card(path):
    return _from_run(path, step, which, warn)
  if step != 'best' or which:
    what = 'averages' if which else 'steps'
    raise UserError(f'{path} is no run: it has no {what} to choose from')
  if path.is_dir():
    return _from_folder(path, warn)
  return _from_file(path, warn)


def load_model(
    path: str | pathlib.Path,
    *,
    step: int | str = 'best',
    which: str | None = None,
) -> tuple[nn.Module, Mapping[str, Any]]:
  """Returns a model and its weights, for `model.apply`.

  Args:
    path: As in `load`.
    step: As in `load`.
    which: As in `load`.

  Raises:
    UserError: If there are no weights that can be read.
  """
  found = load(pathlib.Path(path), step=step, which=which)
  return found.make_model(), found.variables


def _has_card(folder):
  path = folder / card_lib.FILE
  return path.exists() and card_lib.is_card(card_lib.read(path))


def _from_folder(folder, warn):
  """Reads what `convert` or `export` made."""
  if weights_folder.is_one(folder):
    variables, card = weights_folder.read(folder)
    return _checked(variables, card, folder)
  for name in ('model.safetensors', 'pytorch_model.pth'):
    if (folder / name).exists():
      return _from_file(folder / name, warn)
  raise UserError(
      f'{folder} has no weights: programs (stablehlo, onnx) cannot be loaded '
      'as such'
  )


def _from_file(path, warn):
  if path.suffix == '.safetensors':
    return _checked(*safetensors_file.read(path), path)
  if path.suffix not in _TORCH_SUFFIXES:
    raise UserError(f'{path} is not {_FOUND}')
  found = rmt_checkpoint.read(path)
  if not found.match.is_whole:
    raise UserError(
        f'{path} has not all of {found.card.name}; `gswinrmt convert` lists '
        'what is missing'
    )
  if found.match.unexpected:
    warn(f'{path}: {len(found.match.unexpected)} arrays are not used')
  return _checked(found.match.variables, found.card, path)


def _checked(variables, card, path):
  """Compares names and shapes with the card's model; casts to float32."""
  shapes = factory.variable_shapes(
      _make_model(card, card.image_size), (*card.image_size, 3)
  )
  wanted = {
      name: leaf.shape
      for name, leaf in traverse_util.flatten_dict(shapes, sep='/').items()
  }
  flat = traverse_util.flatten_dict(dict(variables), sep='/')
  found = {name: array.shape for name, array in flat.items()}
  differing = sorted(
      name
      for name in wanted.keys() | found.keys()
      if wanted.get(name) != found.get(name)
  )
  if differing:
    more = f' and {len(differing) - 3} more' if len(differing) > 3 else ''
    raise UserError(
        f'{path} has not the arrays of the {card.name} that its card names: '
        f'{", ".join(differing[:3])}{more}'
    )
  return Weights(
      variables=mesh.Devices().replicate(
          jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), variables)
      ),
      card=card,
      origin=str(path),
      folder=path if path.is_dir() else path.parent,
  )


def _from_run(folder, step, which, warn):
  recipe = run_folder.load_config(folder)
  averaged = recipe.ema_decay > 0
  if which == raw_and_ema.EMA and not averaged:
    raise UserError(
        f'{folder} has no average of its weights: it was trained with '
        'config.ema_decay=0'
    )
  card = run_card(folder, recipe)
  directory = folder / 'checkpoints'
  checkpoints = checkpointer.Checkpointer(directory, read_only=True, warn=warn)
  model = _make_model(card, card.image_size)
  shapes = factory.variable_shapes(model, (*card.image_size, 3))
  target = mesh.Devices().target(
      raw_and_ema.beside(shapes, shapes if averaged else None)
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
  # Runs from before there was an average do not say.
  which = which or restored.meta.get('weights', raw_and_ema.RAW)
  kind = f', {_KINDS[which]}' if averaged else ''
  return Weights(
      variables=raw_and_ema.by_name(restored.tree)[which],
      card=card,
      origin=f'{folder}, step {restored.step} (epoch {epoch}){kind}',
      folder=folder,
      step=restored.step,
      epoch=epoch,
      recipe=recipe,
      which=which,
  )


def _make_model(card, image_size):
  config = ml_collections.ConfigDict(
      {
          'model': {'name': card.name, **card.fields},
          'dtype': card.dtype,
          'remat': 'none',  # nothing is trained here
      }
  )
  return build.make_model(config, card.num_classes, (*image_size, 3))


def run_card(
    folder: pathlib.Path, recipe: ml_collections.ConfigDict
) -> card_lib.Card:
  """Returns the card of a run's weights, with the figures of its summary."""
  spec = dataset_record.read(folder, recipe)
  info = spec.info
  fields = recipe.model.to_dict()
  return card_lib.Card(
      name=fields.pop('name'),
      fields=fields,
      num_classes=len(info.class_names),
      class_names=info.class_names,
      image_size=info.image_size,
      mean=info.mean,
      std=info.std,
      crop=spec.crop,
      dtype=recipe.dtype,
      figures=summary.load(folder) or {},
  )
