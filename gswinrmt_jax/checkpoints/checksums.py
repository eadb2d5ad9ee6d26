"""CRC-32 checksums of arrays and of JSON values.

They are needed because Orbax restores most flipped bits without an error.
"""

from collections.abc import Mapping
import json
from typing import Any
import zlib

import jax
import numpy as np


def names(tree: Any) -> list[str]:
  """Returns the path of each array, such as 'params/head/kernel'."""
  return [
      jax.tree_util.keystr(path, simple=True, separator='/')
      for path, _ in jax.tree.leaves_with_path(tree)
  ]


def of_tree(tree: Any) -> int:
  """Returns the CRC-32 of all values of a tree, array after array."""
  total = 0
  for leaf in jax.tree.leaves(tree):
    total = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)), total)
  return total


def by_name(tree: Any) -> dict[str, int]:
  """Returns the CRC-32 of each array by its path."""
  sums = map(of_tree, jax.tree.leaves(tree))
  return dict(zip(names(tree), sums, strict=True))


def differing(saved: Mapping[str, int], tree: Mapping[str, Any]) -> list[str]:
  """Returns the names in `saved` whose values in `tree` have changed.

  Args:
    saved: What `by_name` returned; of early checkpoints, the CRC-32 of each
      whole field of the state.
    tree: The values that were read: all fields or some.
  """
  found = by_name(tree)
  found |= {name: of_tree(part) for name, part in tree.items()}
  return [name for name in saved if saved[name] != found.get(name, saved[name])]


def of_json(value: Any) -> int:
  """Returns the CRC-32 of a JSON value, independent of a file's layout."""
  return zlib.crc32(json.dumps(value, sort_keys=True).encode())
