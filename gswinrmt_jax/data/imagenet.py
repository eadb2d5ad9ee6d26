"""ImageNet-1k: its classes, and how its images are prepared."""

from collections import Counter
import functools
from importlib import resources

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
NUM_CLASSES = 1000
IMAGE_SIZE = (224, 224)
CROP = 224 / 256  # of the resized image, what evaluation keeps


@functools.cache
def classes() -> tuple[str, ...]:
  """Returns the names of the 1,000 classes in the order of their labels.

  Labels are in the order of the WordNet identifiers. Of a synset's names the
  first is taken, 'tench' of 'tench, Tinca tinca'; the two that share it with
  another synset (crane, maillot) get their identifier after it.
  """
  firsts = [names.partition(',')[0] for _, names in _synsets()]
  count = Counter(firsts)
  return tuple(
      first if count[first] == 1 else f'{first} ({identifier})'
      for first, identifier in zip(firsts, wnids(), strict=True)
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
