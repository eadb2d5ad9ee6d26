"""Loads weights from a run, a folder of weights, a file or the Hub.

Weights that ship with the package are folders `gswinrmt_jax/pretrained/NAME`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import fnmatch
import os
import pathlib
from typing import Any

from flax import traverse_util
import jax.numpy as jnp
import ml_collections
import numpy as np

import gswinrmt_jax
from gswinrmt_jax import recipes
from gswinrmt_jax.checkpoints import checkpointer, raw_and_ema
from gswinrmt_jax.data import datasets, image_paths
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import did_you_mean, UserError
from gswinrmt_jax.models import named
from gswinrmt_jax.runs import dataset_record, run_folder, summary
from gswinrmt_jax.terminal import printable
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import hub, rmt_checkpoint, safetensors_file

_SHIPPED = pathlib.Path(gswinrmt_jax.__file__).parent / 'pretrained'
_TORCH_SUFFIXES = ('.pth', '.pt', '.bin')
_KINDS = {raw_and_ema.RAW: 'raw', raw_and_ema.EMA: 'EMA'}  # for messages


def list_models(
    pattern: str | Sequence[str] = '*', *, pretrained: bool = False
) -> list[str]:
  """Returns the names of models, sorted.

      list_models(['rmt_?', 'retention_*'])
      list_models(pretrained=True)

  Args:
    pattern: Shell-style pattern of names, or several; a name must match one.
    pretrained: False lists architectures, for `create_model`; True lists
      trained models whose weights ship with the package, for `load_model`.
  """
  names = named.MODELS
  if pretrained:
    names = [path.parent.name for path in _SHIPPED.glob('*/config.json')]
  patterns = [pattern] if isinstance(pattern, str) else pattern
  return sorted({n for each in patterns for n in fnmatch.filter(names, each)})


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights and everything known about them.

  Attributes:
    variables: `{'params', 'batch_stats'}`, float32.
    card: Model, classes and preprocessing.
    origin: Source of the weights, for messages.
    folder: The run, or the folder of the file; the current one for weights
      that are loaded by name.
    step: Training step; this and all below are None for weights without a run.
    epoch: Training epoch.
    recipe: Config of the run.
    which: 'raw', or 'ema' for the moving average.
  """

  variables: Mapping[str, Any]
  card: card_lib.Card
  origin: str
  folder: pathlib.Path
  step: int | None = None
  epoch: int | None = None
  recipe: ml_collections.ConfigDict | None = None
  which: str | None = None

  @property
  def task(self) -> str:
    """'classification', 'segmentation' or 'detection'."""
    return self.card.task

  def check_finite(self) -> None:
    """Raises UserError if a value is not finite."""
    if broken := not_finite(self.variables):
      raise UserError(
          f'{self.origin} has values that are not finite, in {broken}'
      )

  def size(self, image_size: int | None = None) -> tuple[int, int] | None:
    """Returns the size that images are resized to.

    For a classifier, it is height and width; for others, bounds of the longer
    and the shorter side.

    Args:
      image_size: Height and width, in pixels, or the bound of the shorter side.
        That of the longer side is four times as large for a segmenter, 5/3
        times for a detector, as in the released RMT. None takes the card's
        size. Of segmenters and detectors, that is None if images keep theirs.
    """
    card = self.card
    if self.task == 'classification':
      return (image_size, image_size) if image_size else card.image_size
    if image_size is None:
      return card.fit_within
    long = 5 * image_size // 3 if self.task == 'detection' else 4 * image_size
    return long, image_size

  def warn_of_size(
      self, size: tuple[int, int] | None, warn: Callable[[str], None]
  ) -> None:
    """Warns in one line if images are not seen at the size of training.

    Args:
      size: As `size` returns it.
      warn: Receives the message.
    """
    own = self.size()
    if size != own:
      within = 'within ' * (self.task != 'classification')
      seen, trained = (
          f'{within}{pair[0]} x {pair[1]} pixels'
          if pair
          else 'the size that images have'
          for pair in (size, own)
      )
      warn(
          f'{self.origin} was trained for {trained}: at {seen} it may be far '
          'less accurate'
      )

  def check_is_classifier(self) -> None:
    """Raises `UserError` for others: one class per image is needed."""
    if kind := recipes.SECTIONS.get(self.task):
      raise UserError(
          f'{self.origin} is a {kind}; only classifiers '
          'are accepted here (`gswinrmt evaluate` and `predict` take it)'
      )

  def first_other_class(
      self, info: datasets.Info
  ) -> tuple[int, str, str] | None:
    """Returns the first label whose class has another name in a data set.

    Returns:
      The label and its printable names, here and there; None if the names are
      equal or the weights have none. Numbers of classes must be equal.
    """
    own, data = self.card.class_names, info.class_names
    for label, names in enumerate(zip(own, data, strict=False)):
      mine, other = map(image_paths.composed, names)
      if mine != other:
        return label, printable(mine), printable(other)
    return None

  def check_classes(self, info: datasets.Info) -> None:
    """Checks that a data set has the classes of the weights.

    Raises:
      UserError: If the number of classes differs, or the names where both have
        names.
    """
    card = self.card
    if not card.num_classes:
      raise UserError(f'{self.origin} is a backbone: it has no classes')
    if card.num_classes != len(info.class_names):
      raise UserError(
          f'{self.origin} has {card.num_classes} classes, {info.name} has '
          f'{len(info.class_names)}: choose a data set with the same classes'
      )
    if differing := self.first_other_class(info):
      label, mine, other = differing
      raise UserError(
          f"class {label} is '{mine}' in {self.origin}, and '{other}' in "
          f'{info.name}: choose a data set with the same classes in the same '
          'order'
      )


def load(
    path: str | pathlib.Path,
    *,
    step: int | str = 'best',
    which: str | None = None,
    warn: Callable[[str], None] = print,
) -> Weights:
  """Returns weights, replicated on all devices.

  Args:
    path: A run folder, one of its checkpoints, a folder or file of weights, a
      name of weights that ship with the package, or `hf-hub:OWNER/NAME`.
    step: For a run: 'best', 'latest' or a step number.
    which: For a run: 'raw', 'ema', or None for the better of the two.
    warn: Receives messages about damaged checkpoints, unused arrays and values
      that are not finite.

  Raises:
    UserError: If no weights can be read.
  """
  if which not in (None, *_KINDS):
    raise UserError(f'which is {which!r}: must be {" or ".join(_KINDS)}')
  path = _of_this_machine(path)
  folder = _folder_of_name(str(path))
  if folder:
    _check_no_choice(path, step, which)
    found = load(folder, warn=warn)
    # Exports must not go into the package or the Hub's cache.
    return dataclasses.replace(found, origin=str(path), folder=pathlib.Path())
  if path.parent.name == 'checkpoints' and path.name.isdecimal():
    own = int(path.name)
    if step not in ('best', own):
      raise UserError(f'{path} is of step {own}: leave out step {step}')
    return _from_run(path.parent.parent, own, which, warn)
  if path.is_dir() and card_lib.read(path / card_lib.FILE) is None:
    _check_has_config(path)
    return _from_run(path, step, which, warn)
  _check_no_choice(path, step, which)
  return _from_folder(path, warn) if path.is_dir() else _from_file(path, warn)


def _check_no_choice(path, step, which):
  """Refuses a step, or raw or averaged weights, of what is not a run."""
  if step != 'best' or which:
    what = 'averages' if which else 'steps'
    raise UserError(f'{path} is not a run: it has no {what} to choose from')


def read_card(path: str | pathlib.Path) -> card_lib.Card:
  """Returns the card of weights; that of a run, without reading its arrays.

  Args:
    path: As in `load`.

  Raises:
    UserError: If there are no such weights.
  """
  path = _of_this_machine(path)
  folder = _folder_of_name(str(path)) or path
  inside = folder / safetensors_file.NAME
  if inside.is_file() and card_lib.read(folder / card_lib.FILE):
    return safetensors_file.read(inside)[1]
  if folder.is_file():
    if folder.suffix == '.safetensors':
      return safetensors_file.read(folder)[1]
    return _from_file(folder, warn=lambda _: None).card
  if folder.parent.name == 'checkpoints' and folder.name.isdecimal():
    folder = folder.parent.parent
  if card := card_lib.read(folder / card_lib.FILE):
    return card
  _check_has_config(folder)
  return run_card(folder, run_folder.load_config(folder))


def _of_this_machine(path):
  """Returns a path with `~` expanded; refuses an address, such as gs://A/B."""
  if '://' in str(path):
    raise UserError(f'{path} is an address: name {_accepted()}')
  return pathlib.Path(os.path.expanduser(path))


def _folder_of_name(name):
  """Returns the folder of weights from the Hub or the package; None for a path.

  An existing file or folder takes precedence over weights that ship.
  """
  if name.startswith(hub.PREFIX):
    folder = hub.fetch(name)
    if card_lib.read(folder / card_lib.FILE) is None:
      raise UserError(
          f'{name} is of another library: its {card_lib.FILE} is none of '
          'gswinrmt_jax'
      )
    return folder
  if pathlib.Path(name).exists():
    return None
  shipped = list_models(pretrained=True)
  if name in shipped:
    return _SHIPPED / name
  if name in named.MODELS:
    raise UserError(
        f'{name} is a model without trained weights here: '
        f'create_model({name!r}, num_classes=N) initialises it; for trained '
        f'weights, name {_accepted()}'
    )
  said = did_you_mean(name, shipped) or f': name {_accepted()}'
  raise UserError(f'{name} does not exist{said}')


def _accepted():
  """Lists what `load` accepts, for messages."""
  return (
      'a run folder (runs/NAME), a folder of weights, a .safetensors or .pth '
      f'file, {hub.PREFIX}OWNER/NAME, or a name of weights that ship: '
      + ', '.join(list_models(pretrained=True))
  )


def _check_has_config(folder):
  """Refuses a folder without `config.json`; names one nearby that has it."""
  if (folder / card_lib.FILE).exists():
    return
  near = [folder.parent / card_lib.FILE, *folder.glob(f'*/{card_lib.FILE}')]
  near = [path.parent for path in near if path.exists()]
  hint = f' (did you mean {near[0]}?)' if near else ''
  raise UserError(
      f'{folder} is neither a run folder, such as runs/NAME, nor a folder of '
      f'weights: it has no {card_lib.FILE}{hint}'
  )


def run_card(
    folder: pathlib.Path, recipe: ml_collections.ConfigDict
) -> card_lib.Card:
  """Returns the card of a run's weights, with the results of its summary.

  Raises:
    UserError: If the run's record of its data is damaged, or missing and the
      data set is unknown.
  """
  spec = dataset_record.read(folder, recipe)
  info = spec.info
  fields = recipe.model.to_dict()
  dense, bounds = recipes.head_fields(recipe), recipe.data.fit_within
  splits = {name: recipe.data[f'{name}_split'] for name in ('val', 'test')}
  return card_lib.Card(
      name=fields.pop('name'),
      fields=fields,
      num_classes=len(info.class_names),
      dense=dense,
      class_names=info.class_names,
      image_size=info.image_size,
      mean=info.mean,
      std=info.std,
      crop=spec.crop,
      fit_within=bounds if dense and all(bounds) else None,
      dtype=recipe.dtype,
      figures={**(summary.load(folder) or {}), 'splits': splits},
  )


def _from_folder(folder, warn):
  """Reads a folder that `convert` or `export` wrote."""
  for name in (safetensors_file.NAME, 'pytorch_model.pth'):
    if (folder / name).exists():
      found, copy = _from_file(folder / name, warn), folder / card_lib.FILE
      if card_lib.read(copy) != found.card:
        warn(f'{copy} is not used: it differs from the copy inside {name}')
      return found
  raise UserError(
      f'{folder} has no weights: programs (stablehlo, onnx) cannot be loaded '
      'as such'
  )


def _from_file(path, warn):
  if path.suffix == '.safetensors':
    return _checked(*safetensors_file.read(path), path, warn)
  if path.suffix not in _TORCH_SUFFIXES:
    raise UserError(f'{path} does not hold weights: name {_accepted()}')
  found = rmt_checkpoint.read(path)
  if not found.match.is_whole:
    raise UserError(
        f'{path} is not a complete {found.card.name}; `gswinrmt convert` lists '
        'what is missing or differs'
    )
  if found.match.unexpected:
    warn(f'{path}: {len(found.match.unexpected)} arrays are not used')
  return _checked(found.match.arrays, found.card, path, warn)


def _checked(flat, card, path, warn):
  """Compares names and shapes with the card's model; casts to float32."""
  if differing := differing_arrays(flat, card):
    raise UserError(
        f'{path} does not have the arrays of {card.name}, the model that it is '
        f'for: {differing}'
    )
  variables = traverse_util.unflatten_dict(
      {name: jnp.asarray(array, jnp.float32) for name, array in flat.items()},
      sep='/',
  )
  _warn_unless_finite(variables, path, warn)
  return Weights(
      variables=mesh.Devices().replicate(variables),
      card=card,
      origin=str(path),
      folder=path.parent,
  )


def differing_arrays(flat: Mapping[str, Any], card: card_lib.Card) -> str:
  """Returns the paths of arrays that are not those of a card's model.

  They are missing here or there, or have another shape. '' if there are none.
  """
  wanted = traverse_util.flatten_dict(card.variable_shapes(), sep='/')
  names = sorted(
      ascii(name)[1:-1]
      for name in wanted.keys() | flat.keys()
      if name not in flat
      or name not in wanted
      or flat[name].shape != wanted[name].shape
  )
  return _first(names)


def _warn_unless_finite(variables, origin, warn):
  if broken := not_finite(variables):
    warn(f'{origin} has values that are not finite, in {broken}')


def not_finite(variables: Mapping[str, Any]) -> str:
  """Returns the paths of arrays with values that are not finite, or ''."""
  flat = traverse_util.flatten_dict(dict(variables), sep='/')
  return _first([name for name in flat if not np.isfinite(flat[name]).all()])


def _first(names):
  """Returns three names and the number of the others, for messages."""
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more


def _from_run(folder, step, which, warn):
  recipe = run_folder.load_config(folder)
  averaged = recipe.ema_decay > 0
  if which == raw_and_ema.EMA and not averaged:
    raise UserError(
        f'{folder} has no average of its weights: it was trained with '
        'config.ema_decay=0'
    )
  card = run_card(folder, recipe)
  shapes = card.variable_shapes()
  target = mesh.Devices().target(
      raw_and_ema.pack(shapes, shapes if averaged else None)
  )
  checkpoints = checkpointer.Checkpointer(
      folder / 'checkpoints', read_only=True, warn=warn
  )
  if step == 'best':
    restored = checkpoints.restore_best(target)
  elif step == 'latest':
    restored = checkpoints.restore_latest(target)
  elif isinstance(step, str):
    raise UserError(f"step is {step!r}: must be 'best', 'latest' or a number")
  else:
    restored = checkpoints.restore(step, target)
  if restored is None:
    raise UserError(f'{folder} has no checkpoints yet')
  # Checkpoints older than EMA do not have this entry.
  which = which or restored.meta.get('weights', raw_and_ema.RAW)
  epoch = restored.meta['epoch']
  kind = f', {_KINDS[which]}' if averaged else ''
  origin = f'{folder}, step {restored.step} (epoch {epoch}){kind}'
  # Nothing else tells the checkpoints of a run apart once they are exported.
  checkpoint = {'step': restored.step, 'epoch': epoch, 'weights': which}
  card = dataclasses.replace(
      card, figures={**card.figures, 'checkpoint': checkpoint}
  )
  variables = raw_and_ema.unpack(restored.tree)[which]
  _warn_unless_finite(variables, origin, warn)
  return Weights(
      variables=variables,
      card=card,
      origin=origin,
      folder=folder,
      step=restored.step,
      epoch=epoch,
      recipe=recipe,
      which=which,
  )
