"""Programs for a GPU, with maps that are large, or small, by decree."""

from collections.abc import Iterator
import contextlib
from unittest import mock

import jax

from gswinrmt_jax.ops import arrays, backend


@contextlib.contextmanager
def maps_large_from(size: int) -> Iterator[None]:
  """What is traced inside is for a GPU, with a map of `size` numbers large."""
  jax.clear_caches()  # What was traced does not ask for the size again.
  try:
    with mock.patch.object(arrays, '_LARGE', size), backend.tracing_for('gpu'):
      yield
  finally:
    jax.clear_caches()
