"""The classes of ImageNet's validation images, in the forms they come in."""

from collections.abc import Iterator
import pathlib
import re
import tarfile

from gswinrmt_jax.data import mat_file
from gswinrmt_jax.errors import UserError

TRUTH = 'ILSVRC2012_validation_ground_truth.txt'
DEVKIT = 'ILSVRC2012_devkit_t12'
_META = 'meta.mat'
_LINE = re.compile(r'(ILSVRC2012_val_\d{8})(?:\.JPEG)?[\s,]+(n\d{8})\b')

FORMS = (
    'a text file with lines "ILSVRC2012_val_00000001.JPEG n01751748", the '
    f'devkit ({DEVKIT}.tar.gz, or that folder), or val/ with a folder for each '
    'WordNet identifier'
)


def read(root: pathlib.Path) -> tuple[dict[str, str], str]:
  """Returns {'ILSVRC2012_val_00000001': 'n01751748', ...} and the file's name.

  Looked for in `root` are a text or CSV file that lists them so, then the
  devkit: its ground truth has numbers, whose identifiers are in its meta.mat.

  Raises:
    UserError: If there is none of them, or it cannot be read.
  """
  for path in sorted((*root.glob('*.txt'), *root.glob('*.csv'))):
    labels = dict(_LINE.findall(_head(path)))
    if labels:
      return dict(_LINE.findall(path.read_text('utf-8', 'replace'))), path.name
  for name, truth, meta in _devkits(root):
    try:
      return _join(truth.decode(), mat_file.read(meta)), name
    except (ValueError, LookupError, TypeError) as error:
      raise UserError(
          f'{root / name}: cannot read the validation labels ({error}); use '
          f'instead {FORMS}'
      ) from error
  lonely = (root / TRUTH).exists()
  raise UserError(
      f'{root} has {TRUTH} without {_META}, which says what its numbers mean; '
      f'what works is {FORMS}'
      if lonely
      else f'{root} does not say what its validation images show; needed is '
      f'{FORMS}'
  )


def _head(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return file.read(4096).decode('utf-8', 'replace')


def _devkits(root: pathlib.Path) -> Iterator[tuple[str, bytes, bytes]]:
  """Yields name, ground truth and meta.mat of each devkit that is found."""
  for below in (f'{DEVKIT}/data', 'data', ''):
    truth, meta = root / below / TRUTH, root / below / _META
    if truth.exists() and meta.exists():
      yield str(pathlib.PurePosixPath(below) / TRUTH), *map(
          pathlib.Path.read_bytes, (truth, meta)
      )
  path = root / f'{DEVKIT}.tar.gz'
  if not path.exists():
    return
  found = {}
  try:
    with tarfile.open(path) as tar:
      for member in tar:
        name = pathlib.PurePosixPath(member.name).name
        if member.isfile() and name in (TRUTH, _META):
          found[name] = tar.extractfile(member).read()
  except (tarfile.TarError, OSError, EOFError) as error:
    raise UserError(f'{path} is damaged ({error})') from error
  if len(found) == 2:
    yield path.name, found[TRUTH], found[_META]


def _join(truth: str, variables: dict) -> dict[str, str]:
  wnids = {
      int(synset['ILSVRC2012_ID'][0]): synset['WNID']
      for synset in variables['synsets']
  }
  return {
      f'ILSVRC2012_val_{row:08d}': wnids[int(number)]
      for row, number in enumerate(truth.split(), start=1)
  }
