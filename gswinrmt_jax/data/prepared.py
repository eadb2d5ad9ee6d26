"""Prepared data sets as TFDS keeps them: where they are, how they come to be.

A data set is built in a hidden directory beside its place and then renamed, so
what is found in its place is always whole.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import pathlib
import shutil
import tempfile

from gswinrmt_jax.errors import UserError

FOLDER_VERSION = '1.0.0'  # of everything made from a user's image files
_KEEP = 'keep'


def data_root(data_dir: str) -> pathlib.Path:
  """Returns the TFDS data directory; empty means TFDS's own default."""
  root = data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  return pathlib.Path(root).expanduser().absolute()


def directory(name: str, version: str, data_dir: str) -> pathlib.Path:
  """Returns where TFDS keeps a data set."""
  return data_root(data_dir) / name / version


def command(name: str) -> str:
  """Returns what has to be typed to prepare a data set."""
  own = name in ('cifar10', 'imagenet', 'mini_imagenet')
  return f'gswinrmt prepare {name if own else f"folder {name}"}'


def open_prepared(
    name: str, version: str, data_dir: str, splits: Sequence[str] = ('train',)
):
  """Returns the TFDS builder of a prepared data set, None if there is none.

  Args:
    name: Of the data set.
    version: Its version.
    data_dir: The TFDS data directory; empty for TFDS's own default.
    splits: Those it must have; there may be more.

  Raises:
    UserError: If the directory is there but half written, or holds another
      format than array_record, the one read without TensorFlow.
  """
  import tensorflow_datasets as tfds

  final = directory(name, version, data_dir)
  if not os.path.exists(final):
    return None
  try:
    builder = tfds.builder_from_directory(final)
    infos = [builder.info.splits[split] for split in splits]
    infos += builder.info.splits.values()
    shards = [path for info in infos for path in info.filepaths]
    missing = [path.name for path in shards if not path.exists()]
  except Exception as error:
    # TFDS says a missing or broken description in many ways.
    missing = [str(error).strip().split('\n')[0] or type(error).__name__]
  if missing:
    raise UserError(
        f'{final} is half written or damaged ({missing[0]}); remove that '
        f'directory and run `{command(name)}`'
    )
  if builder.info.file_format.value != 'array_record':
    raise UserError(
        f'{final} holds {builder.info.file_format.value} files, which only '
        'TensorFlow reads; choose another directory with --dir, '
        '--config.data.dir or TFDS_DATA_DIR and prepare there'
    )
  return builder


def build(final: pathlib.Path, write: Callable[[pathlib.Path], object]) -> bool:
  """Builds a data set in a hidden directory and puts it in its place.

  A failure or Ctrl-C leaves nothing but what `write` puts into `kept`; what a
  killed process leaves is hidden, and removed by the next call. If another
  process is building the same, it is waited for. Where the file system has no
  locks both build, each in a directory of its own; the first to be ready is
  kept, and nothing is removed that may be another's.

  Args:
    final: Where it shall be, NAME/VERSION below the data directory.
    write: Writes NAME/VERSION below the directory it is given.

  Returns:
    Whether it was built here; if not, another process was faster.

  Raises:
    UserError: If the directory cannot be written.
  """
  root = final.parent.parent
  try:
    root.mkdir(parents=True, exist_ok=True)
    hidden = root / f'.{final.parent.name}-preparing'
    with locked(hidden.with_suffix('.lock')) as alone:
      if final.exists():
        return False
      if alone:
        _clear(hidden)
      hidden.mkdir(exist_ok=True)
      work = pathlib.Path(tempfile.mkdtemp(dir=hidden))
      try:
        write(work)
        final.parent.mkdir(exist_ok=True)
        os.rename(work.joinpath(*final.parts[-2:]), final)
        shutil.rmtree(kept(work), ignore_errors=True)
      finally:
        shutil.rmtree(work, ignore_errors=True)
        _remove_empty(hidden)
  except (OSError, RuntimeError) as error:  # array_record raises the latter.
    if final.exists():  # A process on another machine was faster.
      return False
    reason = getattr(error, 'strerror', None) or str(error).split('\n')[0]
    raise UserError(
        f'cannot write the data directory {root}: {reason}; choose another '
        'with --dir, --config.data.dir or TFDS_DATA_DIR'
    ) from error
  return True


def kept(work: pathlib.Path) -> pathlib.Path:
  """Returns the folder beside `write`'s that outlives a failure."""
  return work.parent / _KEEP


def _clear(hidden: pathlib.Path) -> None:
  """Removes all that is not kept, and the directory itself if nothing is."""
  for path in hidden.iterdir() if hidden.exists() else ():
    if path.name != _KEEP:
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  _remove_empty(hidden)


def _remove_empty(hidden: pathlib.Path) -> None:
  with contextlib.suppress(OSError):  # Missing, or not empty.
    hidden.rmdir()


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[bool]:
  """Holds a lock that ends with the process, however that ends.

  Yields:
    Whether it is held: some file systems have no locks.
  """
  import fcntl

  while True:
    with path.open('w') as file:
      alone = True
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        print(f'waiting for the process that holds {path}', flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
      except OSError:
        alone = False
      # The file is removed with the lock still held, so that a process that
      # waited for it may now hold one that is gone.
      if path.exists() and os.path.samestat(
          os.fstat(file.fileno()), path.stat()
      ):
        try:
          yield alone
        finally:
          path.unlink(missing_ok=True)
        return
