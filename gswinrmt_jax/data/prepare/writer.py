"""Writes a collection of images as a TFDS data set, its files unchanged."""

from collections.abc import Callable, Mapping
import contextlib
import hashlib
import json
import pathlib
import re
import shutil
from typing import Any

from gswinrmt_jax import files, terminal
from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data import datasets, image_paths, parallel, prepared
from gswinrmt_jax.data.collection import Collection
from gswinrmt_jax.data.prepare import inspection
from gswinrmt_jax.errors import UserError

_VERSION = '1.0.0'  # of every data set written from image files
_SHARD_BYTES = 256 * 2**20
_DESCRIPTION = 'Images of a local directory, described in report.json.'
_CLASSES, _FILES = 'class names', 'names and sizes of files'
_PLACES = 'images', 'boxes', 'label_images'  # Their files are compared.
# TFDS has a folder 'downloads' next to its data sets.
_TAKEN = (*datasets.NAMES, *prepared.BY_NAME, 'downloads')


def check_name(name: str | None, dataset: str) -> None:
  """Checks the name of a custom data set of the kind `dataset`.

  Raises:
    UserError: If the name is missing or taken, or TFDS would change it.
  """
  if not name:
    raise UserError(
        f'a NAME is needed: gswinrmt prepare {dataset} NAME --images DIR'
    )
  if not re.fullmatch('[a-z][a-z0-9_]*', name):
    raise UserError(
        f'{name!r} cannot be the name of a data set: must be lower-case '
        'letters a to z, digits and underscores, a letter first'
    )
  if name in _TAKEN:
    raise UserError(f'the name {name} is taken: choose another')


def prepare(
    name: str,
    find: Callable[[], Collection],
    *,
    data_dir: str = '',
    jobs: int = 1,
    skip_damaged: bool = False,
    replace: bool = False,
) -> pathlib.Path:
  """Writes images as the TFDS data set `name` and returns its directory.

  docs/data.md describes the features and metadata. Records are ordered by a
  hash of their file names, so any slice of a split is a mixed sample.

  Args:
    name: Name of the data set.
    find: Finds the images.
    data_dir: As in `datasets.info`.
    jobs: Threads that decode every image to check it.
    skip_damaged: Leave out unusable images instead of raising an error.
    replace: Whether to write again what is there.

  Raises:
    UserError: If the data set is there, made of other images or with other
      options, and is not to be replaced; if images are damaged and not to be
      left out, too few are left, or the directory cannot be written.
  """
  root = prepared.data_root(data_dir)
  final = root / name / _VERSION
  damaged = root / f'{name}-damaged.txt'

  print(f'{name}: looking for images', flush=True)
  collection = find()
  collections.check(collection)
  request = _request(collection)

  def write(folder):
    print(f'{name}: preparing {final}', flush=True)
    _check_room(collection, folder)
    table, problems = inspection.inspect_all(name, collection, jobs)
    problems = collection.unpaired | problems
    if problems and not skip_damaged:
      count = len(collection.images) + len(collection.unpaired)
      raise _refusal(problems, count, damaged)
    collection.remove(problems)
    collections.check(collection)
    collection.labels.check(collection, table)
    summary = inspection.summarize(collection, table, problems)
    lines = inspection.lines(name, collection.labels, summary)
    print('\n'.join(map(terminal.printable, lines)), flush=True)
    _write_records(name, collection, table, folder)
    summary['request'] = request
    text = json.dumps(summary, indent=1, ensure_ascii=False)
    (folder / 'report.json').write_text(
        text + '\n', 'utf-8', 'backslashreplace'
    )

  if not write_whole(final, write, replace=replace):
    check_prepared(final, request)
    if changed := _newer(collection, final / 'report.json'):
      changed = terminal.printable(str(changed))
      print(f'  warning: {changed} changed later; --replace prepares it again')
    return final
  damaged.unlink(missing_ok=True)
  print(f'{name}: prepared {final}')
  return final


def check_prepared(final: pathlib.Path, request: Mapping[str, Any]) -> None:
  """Says that a data set is there already.

  Args:
    final: Its directory.
    request: What it is to be made of; compared with that of `report.json`,
      which other writers may not have. Files may have moved to other places.

  Raises:
    UserError: If it is made of something else, or damaged.
  """
  prepared.open_version(final)
  try:
    report = files.read_json(final / 'report.json')
    before = report.get('request', {})
  except (OSError, UserError, AttributeError):
    before = {}
  request = json.loads(json.dumps(request))
  shown = {_FILES: 'splits, names or sizes of files'}  # It covers all three.
  differing = [
      shown.get(key, key)
      for key, value in request.items()
      if before and key not in _PLACES and value != before.get(key)
  ]
  if differing:
    raise UserError(
        f'{final} is prepared already, with other {", ".join(differing)}: '
        'prepare it again with --replace, or choose another name or --dir'
    )
  print(f'{final.parent.name}: already prepared in {final}, nothing done')


def _request(collection):
  """Returns what defines a data set: folders, options and files."""
  listing, root = hashlib.sha256(), collection.root
  for split, images in collection.splits.items():
    for image in sorted(images):
      sizes = [image.size or _size(root / image.file_name)]
      sizes += map(_size, collection.labels.files(image))
      listing.update(repr((split, image[:2], sizes)).encode())
  names = repr(collection.class_names).encode()
  return {
      'images': str(root),
      **collection.source,
      _CLASSES: hashlib.sha256(names).hexdigest(),
      'number of images': len(collection.images) + len(collection.unpaired),
      _FILES: listing.hexdigest(),
  }


def _check_room(collection, folder):
  """Refuses images for which there is no room, before they are decoded."""
  total = 0
  for image in collection.images:
    total += image.size or max(0, _size(collection.root / image.file_name))
    total += sum(max(0, _size(file)) for file in collection.labels.files(image))
  if total > shutil.disk_usage(folder).free:
    raise UserError(
        f'no room in {folder.parents[1]} for {total / 1e9:.3g} GB of images: '
        'choose another folder with --dir'
    )


def _newer(collection, report):
  """Returns an image or label file that changed after the report, or None."""
  if not report.exists():  # The data set is of another writer.
    return None
  made = report.stat().st_mtime_ns
  for image in collection.images:
    own = [] if image.size else [collection.root / image.file_name]
    for path in own + collection.labels.files(image):
      with contextlib.suppress(OSError):  # Inspection says what is wrong.
        if path.stat().st_mtime_ns > made:
          return path
  return None


def _size(path):
  try:
    return path.stat().st_size
  except OSError:  # Inspection says what is wrong.
    return -1


def write_whole(
    final: pathlib.Path,
    write: Callable[[pathlib.Path], object],
    *,
    replace: bool = False,
) -> bool:
  """Writes the directory DIR/NAME/VERSION, whole or not at all.

  `write` writes the contents into a given directory. With `replace`, these take
  the place of what is there, once they are complete. If another process is
  writing the same data set, this one waits. On a file system without locks both
  write, and the first to finish is kept.

  Returns:
    Whether it was written here; False if it was there, or another process has
    written it.

  Raises:
    UserError: If the directory cannot be written.
  """
  parent, root = final.parent, final.parent.parent
  try:
    root.mkdir(parents=True, exist_ok=True)
    with files.locked(root / f'.{parent.name}.lock', wait=True) as held:
      if held:
        files.remove_leftovers(parent)  # which may give `final` its name back
      if final.exists() and not replace:
        return False
      parent.mkdir(exist_ok=True)
      try:
        with files.replaced(final, folder=replace) as part:
          part.mkdir()
          write(part)
        return True
      finally:
        with contextlib.suppress(OSError):  # Not empty: there are data sets.
          parent.rmdir()
  except (OSError, RuntimeError) as error:  # array_record raises the latter.
    if final.exists() and not replace:  # Another machine's was faster.
      return False
    reason = getattr(error, 'strerror', None) or str(error).split('\n')[0]
    raise UserError(
        f'cannot write the data directory {root}: {reason}; choose another '
        'with --dir, --config.data.dir or TFDS_DATA_DIR'
    ) from error


def _refusal(problems, count, path):
  """Writes a list of the damaged images to a file and returns the error."""
  lines = (f'{name}\t{problem}\n' for name, problem in problems.items())
  files.write_text(path, ''.join(lines))
  first, problem = next(iter(problems.items()))
  return UserError(
      f'{len(problems):,} of {count:,} images cannot be used, the first '
      f'{first} ({problem}); all are in {path}: repair or remove them, or '
      'leave them out with --on-error=skip'
  )


def _write_records(name, collection, table, folder):
  import tensorflow_datasets as tfds

  metadata = collection.labels.metadata(table)
  identity = tfds.core.dataset_info.DatasetIdentity(
      name=name,
      version=tfds.core.Version(_VERSION),
      data_dir=str(folder),
      module_name='',
  )
  info = tfds.core.DatasetInfo(
      builder=identity,
      description=_DESCRIPTION,
      features=tfds.features.FeaturesDict(
          {
              'image': tfds.features.Image(),
              'file_name': tfds.features.Text(),
              **collection.labels.features(list(collection.class_names)),
          }
      ),
      metadata=metadata and tfds.core.MetadataDict(metadata),
  )
  # The other writer of TFDS needs TensorFlow for more than a gigabyte.
  size = sum(table[name].mean() for name in table.dtype.names if 'size' in name)
  writer = tfds.core.SequentialWriter(
      info,
      max_examples_per_shard=max(1, int(_SHARD_BYTES // size)),
      file_format='array_record',
  )
  writer.initialize_splits(list(collection.splits))
  findings = iter(table)
  for split, images in collection.splits.items():
    pairs = [(image, next(findings)) for image in images]
    examples = _examples(collection, pairs)
    bar = parallel.with_bar(examples, f'{name} {split}', len(pairs))
    writer.add_examples({split: bar})
  writer.close_all()


def _examples(collection, pairs):
  """Yields TFDS examples, ordered by the hash of their file names.

  `pairs` are images and their findings.
  """
  import grain

  def read(pair):
    image, found = pair
    content = image_paths.unchanged(collection.root, image, found['digest'])
    return {
        'image': content,
        'file_name': image.file_name,
        **collection.labels.example(image, found),
    }

  pairs.sort(key=lambda pair: collections.rank(pair[0]))
  return parallel.in_threads(grain.MapDataset.source(pairs).map(read))
