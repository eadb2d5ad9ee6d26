"""Files beside images: label files, paired with them by name, and lists."""

from collections import Counter, defaultdict
from collections.abc import Iterable
import os
import pathlib
from typing import Any

from gswinrmt_jax.data import class_folders, image_paths
from gswinrmt_jax.data.collection import UNDIVIDED
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.errors import UserError


def read_lines(option: str, path: pathlib.Path) -> tuple[str, ...]:
  """Returns the lines of the file that an option names, each different.

  Raises:
    UserError: If it cannot be read, is empty, or has a line twice or an empty
      line between others.
  """
  try:
    text = path.read_text('utf-8-sig').rstrip()
  except (OSError, UnicodeDecodeError) as error:
    why = getattr(error, 'strerror', None) or 'it is not text in UTF-8'
    raise UserError(f'{option} {path} cannot be read: {why}') from error
  counts = Counter(map(str.strip, text.splitlines()))
  if not counts or '' in counts:
    raise UserError(f'{option} {path} is empty, or has an empty line')
  if twice := [line for line, count in counts.items() if count > 1]:
    raise UserError(f'{option} {path} has {twice[0]!r} twice')
  return tuple(counts)


def located(
    names: Iterable[str],
    root: pathlib.Path,
    there: Iterable[str],
    path: pathlib.Path,
) -> dict[str, str]:
  """Returns the images that a file names, by these names.

  A name is a path below `root` or beside the file, with or without suffix. If
  none of them leads to an image, the images were moved, or the names are no
  paths; each image is then found by the last part of its name.

  Args:
    names: Those in the file.
    root: Folder of the images.
    there: The images below it.
    path: The file.

  Raises:
    UserError: If a name may be that of several images.
  """
  paths, ends = defaultdict(set), defaultdict(set)
  for image in there:
    for each in (_unix(image), os.path.splitext(_unix(image))[0]):
      paths[each].add(image)
      ends[os.path.basename(each)].add(image)
  found = {}
  for name in names:
    found[name] = paths.get(os.path.normpath(_unix(name))) or paths.get(
        _unix(os.path.relpath(path.parent / _unix(name), root))
    )
  if not any(found.values()):
    found = {name: ends.get(os.path.basename(_unix(name))) for name in found}
  found = {name: sorted(images) for name, images in found.items() if images}
  for name, images in found.items():
    if len(images) > 1:
      raise UserError(f'{path}: {name} may be {images[0]} or {images[1]}')
  return {name: images[0] for name, images in found.items()}


def _unix(name):
  """Returns a path of Windows, or with accents of a Mac, as others write it."""
  return image_paths.composed(name).replace('\\', '/')


def paired(
    root: pathlib.Path,
    labels: pathlib.Path,
    ignored: Counter,
    *,
    suffix: str | None = None,
    optional: bool = False,
    endings: tuple[str, str] = ('', ''),
) -> tuple[dict[str, list[ImageFile]], dict[str, str]]:
  """Returns the images below `root` with their label files below `labels`.

  Args:
    root: Folder of the images.
    labels: Folder of the label files. If it is `root`, each split may have its
      images in images/ and its label files in labels/.
    ignored: Counts what is passed over.
    suffix: Suffix of the label files; None for label images.
    optional: Whether images without a label file are kept.
    endings: What the names of images and of label files end in, before the
      suffix: not part of the common name. Other files are passed over.

  Returns:
    The images by split; why images or label files are left out.

  Raises:
    UserError: If the folders have different splits; and as in `_by_stem`.
  """
  # Tools for YOLO write images/ and labels/ into the folder of each split.
  one_folder = labels.resolve() == root.resolve()
  places = ('images/', 'labels/') if suffix and one_folder else ('', '')
  ending, of_labels = map(image_paths.composed, endings)
  images = _by_stem(
      root,
      ignored,
      place=places[0],
      ending=ending,
      not_ending=of_labels if one_folder else '',
  )
  # What is passed over in one folder has already been counted.
  ignored = Counter() if one_folder else ignored
  label_files = _by_stem(
      labels, ignored, suffix, place=places[1], ending=of_labels
  )
  if images.keys() != label_files.keys():
    raise UserError(
        f'{root} has {_listed(images)}, {labels} {_listed(label_files)}: '
        'both must be divided in the same way; add what is missing, or move '
        'the other folder elsewhere'
    )
  named = 'of the same name' + ' (see --label-ending)' * (not ending)
  if of_labels:
    named = f'whose name ends in {of_labels} before the suffix'
  what = suffix or f'label image {named}'
  splits, unpaired = {}, {}
  for split, pictured in images.items():
    theirs, splits[split] = label_files[split], []
    for stem, name in pictured.items():
      if stem in theirs or optional:
        file = theirs.get(stem, '')
        splits[split].append(ImageFile(name, 0, label_file=file))
      else:
        unpaired[name] = f'has no {what} in {labels}'
    for stem, name in theirs.items():
      # Tools for YOLO write a list of classes beside the label files.
      if stem not in pictured and os.path.basename(name) != 'classes.txt':
        unpaired[f'{labels}/{name}'] = f'is without an image in {root}'
  return splits, unpaired


def check_size(
    size: tuple[int, int], stated: tuple[Any, Any], path: pathlib.Path
) -> None:
  """Checks width and height of an image against those in the file `path`.

  Args:
    size: Those of the image as it is seen.
    stated: Those in the file, numbers or their text.
    path: The file.

  Raises:
    ValueError: If they differ or are no numbers; the message reads 'has ...'.
  """
  try:
    same = size == tuple(map(float, stated))
  except (ValueError, TypeError):
    same = False
  if not same:
    raise ValueError(
        f'has {size[0]} x {size[1]} pixels (after any EXIF rotation), in '
        f'{path} {stated[0]} x {stated[1]}'
    )


def _by_stem(root, ignored, suffix=None, *, place='', ending='', not_ending=''):
  """Returns {split: {path in the split without suffix and `place`: path}}.

  The paths end in `ending` before the suffix, which is left out, too. Those
  that end in `not_ending`, if any, are left to others.

  Raises:
    UserError: If two files of a split have the same name up to the suffix; and
      as in `class_folders.split_folders`.
  """
  parts = class_folders.split_folders(root, ignored, of_classes=False)
  found = {}
  for split, below in parts.items():
    if suffix:
      names = [*image_paths.files(root, below, suffix)]
    else:
      names = [i.file_name for i in image_paths.find(root, below, ignored)]
    found[split] = of_split = {}
    for name in names:
      stem = os.path.splitext(name)[0].removeprefix(below).lstrip('/')
      stem = image_paths.composed(stem.removeprefix(place))
      if not_ending and stem.endswith(not_ending):
        continue
      if not stem.endswith(ending):
        ignored['with another ending'] += 1
        continue
      stem = stem.removesuffix(ending)
      if stem in of_split:
        raise UserError(
            f'{root}: {of_split[stem]} and {name} have the same name up to the '
            'suffix: remove or rename one'
        )
      of_split[stem] = name
  return found


def _listed(splits):
  names = [f'{split}/' for split in splits if split != UNDIVIDED]
  return ', '.join(names) or 'no train/'
