"""A data set of the user's own pictures."""

import pathlib
import re

from gswinrmt_jax.data import image_folders, random_split
from gswinrmt_jax.data.collection import Collection
from gswinrmt_jax.errors import UserError

SHARE = 0.1  # of val and of test, if nothing else is asked for
_BUILT_IN = ('cifar10', 'digits', 'imagenet', 'mini_imagenet', 'downloads')


def check_name(name: str | None) -> None:
  """Checks that a data set may have this name.

  Raises:
    UserError: If it is none that TFDS keeps as it is, or means something else.
  """
  if not name:
    raise UserError(
        'a NAME is needed: gswinrmt prepare folder NAME --images DIR'
    )
  if not re.fullmatch('[a-z][a-z0-9_]*', name):
    raise UserError(
        f'{name!r} cannot be the name of a data set: small letters a to z, '
        'digits and underscores, a letter first'
    )
  if name in _BUILT_IN:
    raise UserError(f'the name {name} is taken: choose another')


def find(
    root: pathlib.Path,
    *,
    val: float | None = None,
    test: float | None = None,
    seed: int | None = None,
) -> Collection:
  """Returns the pictures of class folders, divided if they are not yet.

  Args:
    root: See `image_folders.find`.
    val: Part of each class for val, if `root` has no train/; None for `SHARE`.
    test: Likewise for test.
    seed: Of the division; None for 0.

  Raises:
    UserError: If the folders will not do, or a division is asked for where
      there is one.
  """
  collection = image_folders.find(root)
  given = {'val': val, 'test': test, 'seed': seed}
  if image_folders.UNDIVIDED not in collection.splits:
    for key, value in given.items():
      if value is not None:
        raise UserError(f'{root} has its own train/, so --{key} has no use')
    collection.source['division'] = 'as the folders are'
    return collection
  shares = {'val': val, 'test': test}
  shares = {k: SHARE if v is None else v for k, v in shares.items()}
  return random_split.by_share(collection, shares, seed or 0)
