"""Label images, which have the class of each pixel, for segmentation."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import hashlib
import pathlib
from typing import Any

import numpy as np
import PIL.Image

from gswinrmt_jax.data import image_paths, pictures
from gswinrmt_jax.data.collection import ClassLabels, Collection, some
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.pictures import LabelCoding, MAX_CLASSES
from gswinrmt_jax.data.prepare import side_files
from gswinrmt_jax.data.segmentation import MASK
from gswinrmt_jax.errors import UserError

_ADVICE = (
    '255 is void unless --values has it: list the values of all classes, as in '
    '--values 0,255'
)


class LabelImages(ClassLabels):
  """Label images, each with the name of its image, up to ending and suffix.

  Attributes:
    root: Folder of the label images.
    coding: How their values encode classes.
  """

  by_class = False
  # `pixels` are the numbers of pixels of each class and of `VOID`.
  findings = (
      ('label_digest', 'u8'),
      ('label_size', 'i8'),
      ('pixels', 'u4', 256),
  )

  def __init__(self, root: pathlib.Path, coding: LabelCoding):
    self.root, self.coding = root, coding

  def files(self, image: ImageFile) -> list[pathlib.Path]:
    """Returns the label image."""
    return [self.root / image.label_file]

  def inspect(self, image: ImageFile, picture: PIL.Image.Image) -> tuple:
    """Returns digest, size in bytes and pixels by class of the label image."""
    try:
      content = (self.root / image.label_file).read_bytes()
    except OSError as error:
      raise ValueError(
          f'has a label image that cannot be read: {error.strerror}'
      ) from error
    try:
      label = pictures.open_label(content, self.coding)
    except ValueError as error:
      raise ValueError(f'its label image {error}') from error
    if label.shape != (picture.height, picture.width):
      raise ValueError(
          f'its label image has {label.shape[1]} x {label.shape[0]} pixels, '
          f'the image {picture.width} x {picture.height}'
      )
    pixels = np.bincount(label.ravel(), minlength=256)
    return image_paths.digest(content), len(content), pixels

  def check(self, collection: Collection, table: np.ndarray) -> None:
    """Names classes by their values; refuses 255 where it stands for a class.

    Raises:
      UserError: If a class has no pixels in train, and pixels of 255 have none,
        or there is but one class, or most unnamed classes have no pixels.
    """
    coding, found = self.coding, table['pixels'].any(0)
    found[pictures.VOID] = False
    seen = found.nonzero()[0]
    if not collection.class_names:
      if len(seen) < 2 or 2 * len(seen) <= seen[-1]:
        values = ','.join(map(str, seen + coding.zero_is_void)) or 'none'
        raise UserError(
            'the label images must have two classes or more whose values have '
            f'no large gaps, but have {values}; {_ADVICE}, or name all, also '
            'unused ones, by --classes'
        )
      all_values = coding.class_values[: seen[-1] + 1]
      collection.class_names = tuple(map(str, all_values))
    train = table[: len(collection.splits['train'])]
    pixels = train['pixels'].sum(0, np.int64)
    void = pixels[pictures.VOID]
    pairs = zip(collection.class_names, pixels, strict=False)
    missing = [name for name, count in pairs if not count]
    is_said = coding.void is not None or coding.zero_is_void or coding.values
    if void and missing and not is_said:
      raise UserError(
          f'class {missing[0]!r} has no pixels in train, and '
          f'{void / pixels.sum():.0%} of the pixels are 255; {_ADVICE}; if 255 '
          'does mean no class, say so with --void 255'
      )

  def counts(
      self, collection: Collection, split: str, table: np.ndarray
  ) -> dict[str, Any]:
    """Returns the number of pixels of each class, and of those without one."""
    pixels = table['pixels'].sum(0, np.int64)
    return {
        'pixels_by_class': pixels[: len(collection.class_names)].tolist(),
        'pixels_without_class': int(pixels[pictures.VOID]),
    }

  def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines on classes of the printed report."""
    names, void = report['class_names'], []
    for split, found in report['splits'].items():
      none = found['pixels_without_class']
      share = none / (none + sum(found['pixels_by_class']))
      void.append(f'{split} {share:.1%}')
    yield f'  pixels without a class: {", ".join(void)}'
    pixels = report['splits']['train']['pixels_by_class']
    ranked = sorted(zip(pixels, names, strict=True))
    least, most = (
        f'{name} {count / max(1, sum(pixels)):.2%}'
        for count, name in (ranked[0], ranked[-1])
    )
    yield f'  of the others in train: {most} (most) to {least} (least)'
    counts = zip(names, pixels, strict=True)
    unseen = [name for name, count in counts if not count]
    if unseen:
      yield f'  warning: classes without pixels in train: {some(unseen)}'

  def features(self, class_names: Sequence[str]) -> dict[str, Any]:
    """Returns the feature of TFDS that holds the label image."""
    import tensorflow_datasets as tfds

    return {MASK: tfds.features.LabeledImage(labels=class_names)}

  def metadata(self, table: np.ndarray) -> dict[str, Any]:
    """Returns the coding; a checksum tells a resumed run of other labels."""
    content = table['label_digest'].tobytes() + bytes(self.coding.values)
    return {
        'void': self.coding.void,
        'zero_is_void': self.coding.zero_is_void,
        'values': list(self.coding.values),
        'labels': hashlib.sha256(content).hexdigest(),
    }

  def example(self, image: ImageFile, finding: np.void) -> dict[str, Any]:
    """Returns the bytes of the label image."""
    file = ImageFile(image.label_file, 0)
    return {
        MASK: image_paths.unchanged(self.root, file, finding['label_digest'])
    }


def find(
    root: pathlib.Path,
    labels: pathlib.Path,
    *,
    classes: pathlib.Path | None = None,
    void: int | None = None,
    zero_is_void: bool = False,
    values: Sequence[int] = (),
    endings: tuple[str, str] = ('', ''),
) -> Collection:
  """Returns the images below `root`, each with its label image below `labels`.

  Either both folders have train/ and any of val/ and test/ (or training/,
  validation/, testing/), or neither does. Below these, the paths of an image
  and its label image differ only in suffix and `endings`.

  Args:
    root: Folder of the images.
    labels: Folder of the label images.
    classes: File with the names of the classes, in order, one per line; if
      None, the names are numbers.
    void: As in `LabelCoding`.
    zero_is_void: As in `LabelCoding`.
    values: As in `LabelCoding`.
    endings: As in `side_files.paired`.

  Raises:
    UserError: If the folders do not match, two files have the same name up to
      the suffix, or `classes`, `void` or `values` are invalid.
  """
  names = _class_names(classes) if classes else tuple(map(str, values))
  if void is not None and not 0 <= void <= 255:
    raise UserError(f'--void {void}: values are from 0 to 255')
  if values:
    _check_values(values, names, void, zero_is_void)
  if root.resolve() == labels.resolve() and not endings[1]:
    raise UserError(
        f'--labels is the folder of --images, {root}: name that of the label '
        'images, or what their names end in, by --label-ending'
    )
  coding = LabelCoding(len(names) or MAX_CLASSES, void, zero_is_void, values)
  ignored = Counter()
  splits, unpaired = side_files.paired(root, labels, ignored, endings=endings)
  return Collection(
      root,
      names,
      splits,
      ignored,
      source={
          'label_images': str(labels),
          'void': void,
          'zero_is_void': zero_is_void,
          # As in reports that do not have these fields.
          'values': list(values) or None,
          'endings': list(endings) if any(endings) else None,
      },
      labels=LabelImages(labels, coding),
      unpaired=unpaired,
  )


def _check_values(values, names, void, zero_is_void):
  given = f'--values {",".join(map(str, values))}'
  different = set(values) & {*range(256)}
  if not 2 <= len(values) == len(different) <= MAX_CLASSES:
    raise UserError(
        f'{given}: must be 2 to {MAX_CLASSES} different values from 0 to 255'
    )
  if len(names) != len(values):
    raise UserError(
        f'{given} has {len(values)} values, --classes {len(names)} names: one '
        'for each class, in the same order'
    )
  if zero_is_void:
    raise UserError(f'{given}: use --void 0 instead of --zero-is-void')
  if void in values:
    raise UserError(f'{given}: --void {void} is the value of a class')


def _class_names(path):
  names = side_files.read_lines('--classes', path)
  if not 2 <= len(names) <= MAX_CLASSES:
    raise UserError(
        f'--classes {path} must have from 2 to {MAX_CLASSES} names, one per '
        f'line: it has {len(names)}'
    )
  return names
