"""Class names and preprocessing constants of ImageNet-1k."""

from collections import Counter
import functools
from importlib import resources

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
NUM_CLASSES = 1000
IMAGE_SIZE = (224, 224)
CROP = 224 / 256  # side of evaluation's crop / side of the resized image
TOKEN_LABEL_CROP = 0.96  # the same of the release's models with token labels


@functools.cache
def classes() -> tuple[str, ...]:
  """Returns the names of the 1,000 classes in the order of their labels.

  Labels follow the order of the WordNet identifiers. A class has the first name
  of its synset: 'tench' for 'tench, Tinca tinca'. If two synsets share that
  name (crane, maillot), the identifier is appended.
  """
  firsts = [(names.split(',')[0], wnid) for wnid, names in _synsets()]
  count = Counter(first for first, _ in firsts)
  return tuple(
      first if count[first] == 1 else f'{first} ({wnid})'
      for first, wnid in firsts
  )


def wnids() -> tuple[str, ...]:
  """Returns the WordNet identifiers of the 1,000 classes, by label."""
  return tuple(identifier for identifier, _ in _synsets())


@functools.cache
def _synsets():
  """Returns identifier and names of each class."""
  file = resources.files('gswinrmt_jax.data') / 'imagenet_classes.txt'
  lines = file.read_text().splitlines()
  return [tuple(line.split(' ', maxsplit=1)) for line in lines]
