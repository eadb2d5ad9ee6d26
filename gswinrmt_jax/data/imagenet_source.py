"""Finds the pictures of ImageNet-1k as it is released, or as class folders."""

from collections import Counter
import pathlib
import re

from gswinrmt_jax.data import (
    image_folders,
    image_tars,
    imagenet,
    imagenet_labels,
    wnid_folders,
)
from gswinrmt_jax.data.collection import Collection, Picture
from gswinrmt_jax.errors import UserError

TRAIN_TAR = 'ILSVRC2012_img_train.tar'
VAL_TAR = 'ILSVRC2012_img_val.tar'
OFFICIAL = {'train': 1_281_167, 'val': 50_000}
_TRAIN = (TRAIN_TAR, 'train', 'ILSVRC2012_img_train')
_VAL = (VAL_TAR, 'val', 'validation', 'ILSVRC2012_img_val')
_VAL_NAME = re.compile(r'ILSVRC2012_val_\d{8}')


def find(root: pathlib.Path) -> Collection:
  """Returns the pictures of ImageNet-1k; labels are in the order of wnids.

  Train is ILSVRC2012_img_train.tar, read where it is, or train/ with a folder
  n01440764 or a tar n01440764.tar for each class. Val is val/ with such
  folders, or ILSVRC2012_img_val.tar or val/ with the images side by side, whose
  classes `imagenet_labels` reads.

  Raises:
    UserError: If any of it is missing or has other classes.
  """
  wnids = imagenet.wnids()
  labels = {wnid: label for label, wnid in enumerate(wnids)}
  ignored, source = Counter(), {'division': 'as released'}
  train = _first(root, _TRAIN, 'train/ with a folder for each class')
  with_classes = (name for name in _VAL if wnid_folders.is_there(root, name))
  val = next(with_classes, None) or _first(root, _VAL, 'val/')
  source |= {'train': train, 'val': val}
  splits = {'train': _of_classes(root, train, labels, ignored)}
  there = {picture.label for picture in splits['train']}
  missing = [wnid for wnid, label in labels.items() if label not in there]
  if missing:
    raise UserError(
        f'{root / train}: {len(missing)} of {len(labels)} classes of '
        f'ImageNet-1k have no pictures, the first {missing[0]}'
    )
  if wnid_folders.is_there(root, val):
    splits['val'] = _of_classes(root, val, labels, ignored)
  else:
    by_image, source['labels'] = imagenet_labels.read(root)
    pictures = (
        image_tars.pictures(root, val, ignored)
        if (root / val).is_file()
        else (Picture(p, 0) for p in image_folders.walk(root, val, ignored))
    )
    splits['val'] = [
        picture._replace(label=_label(picture.file_name, by_image, labels))
        for picture in pictures
    ]
  notes = [
      f'{split} has {len(splits[split]):,} pictures, the release has {count:,}'
      for split, count in OFFICIAL.items()
      if len(splits[split]) != count
  ]
  return Collection(root, imagenet.classes(), splits, ignored, source, notes)


def _first(root, names, folder):
  for name in names:
    if (root / name).exists():
      return name
  raise UserError(f'{root} has neither {names[0]} nor {folder}')


def _of_classes(root, below, labels, ignored):
  pictures, unknown = wnid_folders.find(
      root, below, labels, ignored, 'imagenet'
  )
  if unknown:
    raise UserError(
        f'{root / below} has {len(unknown)} classes that ImageNet-1k has not, '
        f'the first {unknown[0]}; `gswinrmt prepare folder` takes any classes'
    )
  return pictures


def _label(file_name, by_image, labels):
  match = _VAL_NAME.search(file_name)
  wnid = by_image.get(match[0]) if match else None
  if wnid not in labels:
    raise UserError(
        f'{file_name}: '
        + (f'{wnid} is no class' if wnid else 'the labels do not name it')
    )
  return labels[wnid]
