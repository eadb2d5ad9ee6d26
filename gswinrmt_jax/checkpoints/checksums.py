"""Checksums of what a checkpoint holds, array by array.

Orbax keeps none of its own: a bit that flips on disk would go unseen.
"""

from collections.abc import Mapping
from typing import Any
import zlib

import jax
import numpy as np

from gswinrmt_jax.distributed import mesh


def checksum(tree: Any) -> int:
  """Returns the CRC-32 of all values, leaf after leaf."""
  total = 0
  for leaf in jax.tree.leaves(tree):
    total = zlib.crc32(np.ascontiguousarray(mesh.fetch(leaf)), total)
  return total


def by_name(tree: Any) -> dict[str, int]:
  """Returns the CRC-32 of each array; names are paths, 'params/head/kernel'."""
  return {
      jax.tree_util.keystr(path, simple=True, separator='/'): checksum(leaf)
      for path, leaf in jax.tree.leaves_with_path(tree)
  }


def differing(saved: Mapping[str, int], fields: Mapping[str, Any]) -> list[str]:
  """Returns the names of what is not as it was saved.

  Args:
    saved: As `by_name` gave them. The first versions kept one checksum for
      each field, and before that none: what has none is not compared.
    fields: What was read, by field; it need not be all of them.
  """
  found = by_name(fields)
  found |= {name: checksum(part) for name, part in fields.items()}
  return [name for name in saved if saved[name] != found.get(name, saved[name])]
