"""Divides a collection at random, class by class."""

from collections.abc import Mapping
import hashlib

from gswinrmt_jax.data.collection import Collection, Picture
from gswinrmt_jax.errors import UserError


def by_share(
    collection: Collection,
    shares: Mapping[str, float],
    seed: int,
    *,
    options: bool = True,
) -> Collection:
  """Returns the collection with all its pictures divided anew.

  Of a class of n pictures, `floor(n share + 1/2)` go to each split but train,
  which gets the rest. The pictures of a class are in the order of the SHA-256
  of 'SEED:FILE_NAME'; the first go to test, the next to val. So the division
  is the same on every machine, and a picture more or less moves few others.

  Args:
    collection: Its splits are pooled first.
    shares: Of val and test, each from 0 to below 1; 0 makes no split.
    seed: Of the order.
    options: Whether the shares are those of --val and --test, which a message
      may then advise.

  Raises:
    UserError: If the shares leave train nothing, or no picture falls to one of
      the other splits.
  """
  if not all(0 <= share < 1 for share in shares.values()) or (
      sum(shares.values()) >= 1
  ):
    given = ' and '.join(f'--{k}={v:g}' for k, v in shares.items())
    raise UserError(f'{given}: must not be negative, and together below 1')
  wanted = [s for s in ('test', 'val') if shares.get(s)]
  splits = {split: [] for split in ('train', 'val', 'test')}
  for name, pictures in zip(
      collection.class_names, _by_class(collection), strict=True
  ):
    pictures.sort(key=lambda picture: _rank(picture, seed))
    start = 0
    for split in wanted:
      stop = start + int(len(pictures) * shares[split] + 0.5)
      splits[split] += pictures[start:stop]
      start = stop
    if start >= len(pictures):
      raise UserError(
          f'class {name!r} has {len(pictures)} pictures, of which none is left '
          f'for train: add some{", or lower --val and --test" * options}'
      )
    splits['train'] += pictures[start:]
  for split in wanted:
    if not splits[split]:
      advice = f', or raise --{split}, or set it to 0' if options else ''
      raise UserError(
          f'{split} would get nothing, as {shares[split]:.3g} of every class '
          f'is less than half a picture: add some{advice}'
      )
  collection.splits = {
      split: sorted(pictures)
      for split, pictures in splits.items()
      if split == 'train' or split in wanted
  }
  collection.source |= {
      'division': 'random, per class',
      'seed': seed,
      'shares': {split: shares[split] for split in wanted},
  }
  return collection


def _by_class(collection: Collection) -> list[list[Picture]]:
  classes = [[] for _ in collection.class_names]
  for pictures in collection.splits.values():
    for picture in pictures:
      classes[picture.label].append(picture)
  return classes


def _rank(picture: Picture, seed: int) -> bytes:
  return hashlib.sha256(f'{seed}:{picture.file_name}'.encode()).digest()
