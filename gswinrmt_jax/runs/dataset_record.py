"""What a run's images are, and of which records: `RUN/data.json`."""

from collections.abc import Mapping
import dataclasses
import pathlib

import ml_collections

from gswinrmt_jax import files
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, label_maps, sources
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import run_folder
from gswinrmt_jax.train import inputs

_FILE = 'data.json'
# Type and number of the parts of a tuple.
_FORMS = {
    'mean': ((int, float), 3),
    'std': ((int, float), 3),
    'image_size': (int, 2),
}


@dataclasses.dataclass(frozen=True)
class Identity:
  """What tells the records of a split from others.

  Attributes:
    version: Of the data set; empty where it has none.
    records: How many there are.
    order: Checksum of which record is where, of `label_maps.order_checksum`.
  """

  version: str
  records: int
  order: str


@dataclasses.dataclass(frozen=True)
class ImageSpec:
  """What a run's weights were made for.

  Attributes:
    info: Of the data set, with the size that the model sees.
    crop: Part of the resized image that evaluation keeps, as `pictures.fit`
      has it.
    splits: The records of 'train' and 'val'; empty in runs of before they were
      written down.
    maps: Checksum of the label maps that it is trained with, '' if none.
  """

  info: datasets.Info
  crop: float = 1.0
  splits: Mapping[str, Identity] = dataclasses.field(default_factory=dict)
  maps: str = ''

  def write(self, folder: pathlib.Path) -> None:
    """Writes it into a run folder.

    Raises:
      UserError: If the run was begun on other data; names what differs.
    """
    path = folder / _FILE
    differing = self._differences(_read(path)) if path.exists() else []
    if differing:
      raise UserError(
          f'{self.info.name} is not what {folder} was begun on: in {_FILE} '
          f'{", ".join(differing)}; choose another --workdir'
      )
    run_folder.write_json(
        path,
        {
            **dataclasses.asdict(self.info),
            'crop': self.crop,
            'label_maps': self.maps,
            'splits': {
                split: dataclasses.asdict(identity)
                for split, identity in self.splits.items()
            },
        },
    )

  def _differences(self, before):
    """Lists what was otherwise; what was not written down does not count."""
    old = {**vars(before.info), 'crop': before.crop, 'label_maps': before.maps}
    new = {**vars(self.info), 'crop': self.crop, 'label_maps': self.maps}
    differing = [f'{name} differs' for name in old if old[name] != new[name]]
    for split in sorted(self.splits.keys() & before.splits.keys()):
      here = vars(self.splits[split])
      for name, value in vars(before.splits[split]).items():
        if value != here[name]:
          said = f'is {value!r} there and {here[name]!r} here'
          differing.append(
              f'{name} of {split} {"differs" if name == "order" else said}'
          )
    return differing


def of_run(
    config: ml_collections.ConfigDict,
    info: datasets.Info,
    train: batches_lib.Records | batches_lib.Cropped,
    val: batches_lib.Records,
    maps: label_maps.LabelMaps | None,
) -> ImageSpec:
  """Returns what a run on these records is for; reads some of them."""
  splits = {'train': _identity(train.source), 'val': _identity(val.source)}
  checksum = maps.checksum if maps else ''
  return ImageSpec(info, inputs.crop(config), splits, checksum)


def read(folder: pathlib.Path, recipe: ml_collections.ConfigDict) -> ImageSpec:
  """Returns what a run's weights were made for; the data need not be there.

  Raises:
    UserError: If nobody wrote it down and the data are not known.
  """
  path = folder / _FILE
  if not path.exists():  # a run of before there was one
    return ImageSpec(datasets.info(recipe.data.name, recipe.data.dir))
  return _read(path)


def _read(path: pathlib.Path) -> ImageSpec:
  try:
    fields = dict(files.read_json(path))
    crop, maps = fields.pop('crop'), fields.pop('label_maps', '')
    splits = fields.pop('splits', {})
    for name in ('class_names', 'mean', 'std', 'image_size'):
      fields[name] = tuple(fields[name])
    for name, (kind, count) in _FORMS.items():
      values = fields[name]
      if len(values) != count or not all(isinstance(v, kind) for v in values):
        raise ValueError(f'{name} is {values!r:.80}')
    return ImageSpec(
        datasets.Info(**fields),
        crop,
        {name: Identity(**splits[name]) for name in splits},
        maps,
    )
  except (OSError, ValueError, TypeError, LookupError) as error:
    raise UserError(f'{path} cannot be read: {error}') from error


def _identity(source: sources.Source) -> Identity:
  order = label_maps.order_checksum(source)
  return Identity(source.version, len(source), order)
