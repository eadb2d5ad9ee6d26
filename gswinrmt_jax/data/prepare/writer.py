"""Writes a collection of images as a TFDS data set, its files unchanged."""

from collections.abc import Callable
import contextlib
import hashlib
import json
import pathlib

from gswinrmt_jax import files
from gswinrmt_jax.data import parallel, pictures, sources
from gswinrmt_jax.data.prepare import collection as collections
from gswinrmt_jax.data.prepare import inspection
from gswinrmt_jax.data.prepare.collection import Collection, ImageFile
from gswinrmt_jax.errors import UserError

_VERSION = '1.0.0'  # of every data set written from image files
_SHARD_BYTES = 256 * 2**20
_DESCRIPTION = 'Images of a local directory, described in report.json.'


def prepare(
    name: str,
    find: Callable[[], Collection],
    *,
    data_dir: str = '',
    jobs: int = 1,
    skip_damaged: bool = False,
) -> pathlib.Path:
  """Writes images as the TFDS data set `name` and returns its directory.

  docs/data.md describes the features and metadata. Records are ordered by a
  hash of their file names, so any slice of a split is a mixed sample.

  Args:
    name: Name of the data set.
    find: Finds the images; called if the data set does not exist yet.
    data_dir: As in `datasets.info`.
    jobs: Threads that decode every image to check it.
    skip_damaged: Leave out unusable images instead of raising an error.

  Raises:
    UserError: If images are damaged and not to be left out, too few are left,
      or the directory cannot be written.
  """
  root = sources.data_root(data_dir)
  final = root / name / _VERSION
  damaged = root / f'{name}-damaged.txt'

  if sources.open_version(final):
    print(f'{name}: already prepared in {final}, nothing done')
    return final
  print(f'{name}: looking for images', flush=True)
  collection = find()
  collections.check(collection)

  def write(folder):
    table, problems = inspection.inspect_all(name, collection, jobs)
    problems = collection.unpaired | problems
    if problems and not skip_damaged:
      count = len(collection.images) + len(collection.unpaired)
      raise _refusal(problems, count, damaged)
    for split, images in collection.splits.items():
      collection.splits[split] = [
          image for image in images if image.file_name not in problems
      ]
    collections.check(collection)
    if not collection.class_names:
      collection.class_names = _numbers(table)
    summary = inspection.summarize(collection, table, problems)
    print('\n'.join(inspection.lines(name, summary)), flush=True)
    _write_records(name, collection, table, folder)
    text = json.dumps(summary, indent=1, ensure_ascii=False)
    (folder / 'report.json').write_text(text + '\n', 'utf-8')

  print(f'{name}: preparing {final}', flush=True)
  write_whole(final, write)
  damaged.unlink(missing_ok=True)
  print(f'{name}: prepared {final}')
  return final


def write_whole(
    final: pathlib.Path, write: Callable[[pathlib.Path], object]
) -> None:
  """Writes the directory DIR/NAME/VERSION, whole or not at all.

  `write` writes the contents into a given directory. If another process is
  writing the same data set, this one waits. On a file system without locks both
  write, and the first to finish is kept.

  Raises:
    UserError: If the directory cannot be written.
  """
  parent, root = final.parent, final.parent.parent
  try:
    root.mkdir(parents=True, exist_ok=True)
    with files.locked(root / f'.{parent.name}.lock', wait=True) as held:
      if final.exists():  # Another process has written it.
        return
      parent.mkdir(exist_ok=True)
      if held:
        files.remove_leftovers(parent)
      try:
        with files.replaced(final) as part:
          part.mkdir()
          write(part)
      finally:
        with contextlib.suppress(OSError):  # Not empty: there are data sets.
          parent.rmdir()
  except (OSError, RuntimeError) as error:  # array_record raises the latter.
    if final.exists():  # A process on another machine was faster.
      return
    reason = getattr(error, 'strerror', None) or str(error).split('\n')[0]
    raise UserError(
        f'cannot write the data directory {root}: {reason}; choose another '
        'with --dir, --config.data.dir or TFDS_DATA_DIR'
    ) from error


def _numbers(table):
  """Returns numbers as class names, up to the largest class that occurs."""
  found = table['pixels'].any(0)
  found[pictures.VOID] = False
  count = int(found.nonzero()[0].max(initial=0)) + 1
  if count < 2:
    raise UserError(
        'the label images have no class but 0: two classes or more are needed'
    )
  return tuple(map(str, range(count)))


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

  names, labels = list(collection.class_names), collection.label_images
  features = {'image': tfds.features.Image(), 'file_name': tfds.features.Text()}
  metadata, sizes = None, table['size']
  if labels:
    features['segmentation_mask'] = tfds.features.LabeledImage(labels=names)
    # The checksum tells a resumed run whether its labels are the same.
    metadata = tfds.core.MetadataDict(
        void=labels.coding.void,
        zero_is_void=labels.coding.zero_is_void,
        labels=hashlib.sha256(table['label_digest'].tobytes()).hexdigest(),
    )
    sizes = sizes + table['label_size']
  else:
    features['label'] = tfds.features.ClassLabel(names=names)
  identity = tfds.core.dataset_info.DatasetIdentity(
      name=name,
      version=tfds.core.Version(_VERSION),
      data_dir=str(folder),
      module_name='',
  )
  info = tfds.core.DatasetInfo(
      builder=identity,
      description=_DESCRIPTION,
      features=tfds.features.FeaturesDict(features),
      metadata=metadata,
  )
  # The other writer of TFDS needs TensorFlow for more than a gigabyte.
  writer = tfds.core.SequentialWriter(
      info,
      max_examples_per_shard=max(1, int(_SHARD_BYTES // sizes.mean())),
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
  labels = collection.label_images

  def rank(pair):
    name = pair[0].file_name.encode()
    return hashlib.blake2b(name, digest_size=16).digest()

  def read(place):
    image, finding = pairs[place]
    example = {
        'image': _unchanged(collection.root, image, finding['digest']),
        'file_name': image.file_name,
    }
    if labels:
      file = ImageFile(image.label_file, 0)
      mask = _unchanged(labels.root, file, finding['label_digest'])
      return {**example, 'segmentation_mask': mask}
    return {**example, 'label': image.label}

  pairs.sort(key=rank)
  return parallel.in_threads(read, len(pairs))


def _unchanged(root, image, digest):
  """Returns an image's bytes; refuses a file that changed since inspection."""
  path = root / image.file_name
  try:
    content = collections.read(root, image)
  except OSError as error:
    raise UserError(f'{path}: {error.strerror or error}') from error
  if inspection.digest(content) != digest:
    raise UserError(f'{path} has changed since it was checked: start again')
  return content
