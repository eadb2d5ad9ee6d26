"""Pairs images with label images, by file name."""

from collections import Counter
import os
import pathlib

from gswinrmt_jax.data import class_folders, image_paths
from gswinrmt_jax.data.collection import Collection, LabelImages, UNDIVIDED
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.pictures import LabelCoding, MAX_CLASSES
from gswinrmt_jax.errors import UserError


def find(
    root: pathlib.Path,
    labels: pathlib.Path,
    *,
    classes: pathlib.Path | None = None,
    void: int | None = None,
    zero_is_void: bool = False,
) -> Collection:
  """Returns the images below `root`, each with its label image below `labels`.

  Either both folders have train/ and any of val/ and test/ (or training/,
  validation/, testing/), or neither does. Below these, the paths of an image
  and its label image differ only in the suffix.

  Args:
    root: Folder of the images.
    labels: Folder of the label images.
    classes: File with the names of the classes, in order, one per line; if
      None, the names are numbers.
    void: As in `LabelCoding`.
    zero_is_void: As in `LabelCoding`.

  Raises:
    UserError: If the folders do not match, two files have the same name up to
      the suffix, or `classes` or `void` is invalid.
  """
  names = _class_names(classes) if classes else ()
  if void is not None and not 0 <= void <= 255:
    raise UserError(f'--void {void}: values are from 0 to 255')
  coding = LabelCoding(len(names) or MAX_CLASSES, void, zero_is_void)
  ignored = Counter()
  images, label_files = _by_stem(root, ignored), _by_stem(labels, ignored)
  if images.keys() != label_files.keys():
    raise UserError(
        f'{root} has {_listed(images)}, {labels} {_listed(label_files)}: '
        'images and label images must be divided in the same way'
    )
  splits, unpaired = {}, {}
  for split, by_stem in images.items():
    theirs, splits[split] = label_files[split], []
    for stem, name in by_stem.items():
      if stem in theirs:
        splits[split].append(ImageFile(name, 0, label_file=theirs[stem]))
      else:
        unpaired[name] = f'has no label image in {labels}'
    for stem, name in theirs.items():
      if stem not in by_stem:
        unpaired[f'{labels}/{name}'] = f'is a label without an image in {root}'
  return Collection(
      root,
      names,
      splits,
      ignored,
      source={
          'label_images': str(labels),
          'void': void,
          'zero_is_void': zero_is_void,
      },
      label_images=LabelImages(labels, coding),
      unpaired=unpaired,
  )


def _class_names(path):
  try:
    names = [line.strip() for line in path.read_text('utf-8-sig').splitlines()]
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'--classes {path} cannot be read: {error}') from error
  twice = [name for name, count in Counter(names).items() if count > 1]
  if '' in names or twice or not 2 <= len(names) <= MAX_CLASSES:
    raise UserError(
        f'--classes {path} must have from 2 to {MAX_CLASSES} different names, '
        f'one per line: it has {len(names)} lines'
        + (f', {twice[0]!r} more than once' if twice else '')
    )
  return tuple(names)


def _by_stem(root, ignored):
  """Returns {split: {path in the split without suffix: path}}."""
  parts = class_folders.split_folders(root, ignored, of_classes=False)
  found = {}
  for split, below in parts.items():
    found[split] = by_stem = {}
    for image in image_paths.find(root, below, ignored):
      stem = os.path.splitext(image.file_name)[0]
      stem = stem.removeprefix(below).lstrip('/')
      if stem in by_stem:
        raise UserError(
            f'{root}: {by_stem[stem]} and {image.file_name} have the same name '
            'up to the suffix: remove or rename one'
        )
      by_stem[stem] = image.file_name
  return found


def _listed(splits):
  names = [f'{split}/' for split in splits if split != UNDIVIDED]
  return ', '.join(names) or 'no train/'
