"""Makes a TFDS data set of a collection of pictures, bytes untouched."""

from collections import deque
from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import pathlib
import time

from gswinrmt_jax.data import collection as collection_lib
from gswinrmt_jax.data import prepared
from gswinrmt_jax.data.collection import Collection, Picture
from gswinrmt_jax.errors import UserError

_SHARD_BYTES = 256 * 2**20
_READERS = 8  # threads that read ahead of the writer
_DESCRIPTION = 'Pictures of a local directory; report.json has what they are.'


def prepare(
    name: str,
    find: Callable[[], Collection],
    *,
    data_dir: str = '',
    jobs: int = 1,
    skip_damaged: bool = False,
) -> pathlib.Path:
  """Writes the TFDS data set `name` of the pictures that `find` returns.

  Features are `image` (the file's own bytes), `label` and `file_name`. Records
  are in the order of a hash of their file names, so that any slice of a split
  is a mixed sample.

  Args:
    name: Of the data set.
    find: Finds the pictures; called if the data set is not there yet.
    data_dir: The TFDS data directory; empty for TFDS's own default.
    jobs: Processes that decode the pictures, to see whether they can be.
    skip_damaged: Leave out the pictures that cannot be decoded.

  Returns:
    The data set's directory, prepared now or before.

  Raises:
    UserError: If pictures are damaged and not to be left out, too little is
      left, or the directory cannot be written.
  """
  final = prepared.directory(name, prepared.FOLDER_VERSION, data_dir)
  if prepared.open_prepared(name, prepared.FOLDER_VERSION, data_dir):
    print(f'{name}: already prepared in {final}, nothing done')
    return final
  print(f'{name}: looking for pictures', flush=True)
  collection = find()
  collection_lib.check(collection)
  print(f'{name}: preparing {final}', flush=True)

  def write(work):
    tally, report = _inspected(name, collection, work, jobs, skip_damaged)
    folder = work.joinpath(*final.parts[-2:])
    folder.mkdir(parents=True)
    _write(name, collection, tally, folder)
    (folder / 'report.json').write_text(
        json.dumps(report, indent=1, ensure_ascii=False) + '\n', 'utf-8'
    )

  prepared.build(final, write)
  print(f'{name}: prepared {final}')
  return final


def _inspected(name, collection, work, jobs, skip_damaged):
  """Decodes all; returns the tally and the report, which it prints."""
  import tqdm

  from gswinrmt_jax.data import image_report, inspect_images

  tally = image_report.Tally()
  prepared.kept(work).mkdir(exist_ok=True)
  begin = time.monotonic()
  total = sum(map(len, collection.splits.values()))
  findings = inspect_images.inspect_all(
      collection.root,
      [p for pictures in collection.splits.values() for p in pictures],
      jobs=jobs,
      journal=prepared.kept(work) / 'checked.jsonl',
  )
  # No bar where there is no terminal to redraw it.
  bar = tqdm.tqdm(total=total, desc=f'{name} check', unit='img', disable=None)
  with contextlib.closing(findings), bar:
    for split, pictures in collection.splits.items():
      good = []
      for picture in pictures:
        if tally.add(split, picture, *next(findings)):
          good.append(picture)
        bar.update()
      collection.splits[split] = good
  _refuse_damaged(tally.damaged, total, prepared.kept(work), skip_damaged)
  collection_lib.check(collection)
  report = image_report.make(collection, tally, time.monotonic() - begin)
  print('\n'.join(image_report.lines(name, report)), flush=True)
  return tally, report


def _refuse_damaged(damaged, total, folder, skip_damaged):
  if not damaged or skip_damaged:
    return
  path = folder / 'damaged.txt'
  path.write_text(
      ''.join(f'{picture.file_name}\t{why}\n' for picture, why in damaged),
      'utf-8',
  )
  first, why = damaged[0]
  raise UserError(
      f'{len(damaged):,} of {total:,} pictures cannot be used, the first '
      f'{first.file_name} ({why}); all are in {path}: mend or remove them, or '
      'leave them out with --on-error=skip'
  )


def _write(name, collection, tally, folder):
  import tensorflow_datasets as tfds
  import tqdm

  info = tfds.core.DatasetInfo(
      builder=tfds.core.dataset_info.DatasetIdentity(
          name=name,
          version=tfds.core.Version(prepared.FOLDER_VERSION),
          data_dir=str(folder),
          module_name='',
      ),
      description=_DESCRIPTION,
      features=tfds.features.FeaturesDict(
          {
              'image': tfds.features.Image(),
              'label': tfds.features.ClassLabel(names=collection.class_names),
              'file_name': tfds.features.Text(),
          }
      ),
  )
  total = sum(map(len, collection.splits.values()))
  # Shards of one size but for the last; TFDS's other writer needs TensorFlow
  # for more than a gigabyte.
  writer = tfds.core.SequentialWriter(
      info,
      max_examples_per_shard=max(1, _SHARD_BYTES * total // tally.bytes),
      file_format='array_record',
  )
  writer.initialize_splits(list(collection.splits))
  for split, pictures in collection.splits.items():
    examples = _examples(collection.root, pictures, tally.digests[split])
    writer.add_examples(
        {
            split: tqdm.tqdm(
                examples,
                desc=f'{name} {split}',
                total=len(pictures),
                unit='img',
                disable=None,
            )
        }
    )
  writer.close_all()


def _examples(
    root: pathlib.Path, pictures: list[Picture], digests: list[int]
) -> Iterator[dict]:
  """Yields the pictures as TFDS examples, in the order of their hashes."""
  from gswinrmt_jax.data import inspect_images

  order = sorted(
      range(len(pictures)), key=lambda i: _rank(pictures[i].file_name)
  )
  with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
    waiting = deque()
    upcoming = iter(order)
    while True:
      for row in itertools.islice(upcoming, 4 * _READERS - len(waiting)):
        waiting.append(
            (row, pool.submit(collection_lib.read, root, pictures[row]))
        )
      if not waiting:
        return
      row, future = waiting.popleft()
      try:
        content = future.result()
      except OSError as error:
        content, reason = b'', f': {error.strerror or error}'
      else:
        reason = ' has changed since it was looked at: start again'
      if inspect_images.digest(content) != digests[row]:
        raise UserError(f'{root / pictures[row].file_name}{reason}')
      yield {
          'image': content,
          'label': pictures[row].label,
          'file_name': pictures[row].file_name,
      }


def _rank(file_name: str) -> bytes:
  return hashlib.blake2b(file_name.encode(), digest_size=16).digest()
