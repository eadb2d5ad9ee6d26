"""The kind of device that a computation is chosen for."""

from collections.abc import Iterator
import contextlib
import contextvars

import jax

_chosen: contextvars.ContextVar[str] = contextvars.ContextVar(
    'platform', default=''
)


def platform() -> str:
  """Returns 'cpu' or 'gpu': JAX's default backend, unless it was chosen."""
  return _chosen.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(name: str) -> Iterator[None]:
  """Has what is traced inside chosen for another kind of device.

  For programs that are compiled here and run elsewhere. Derivatives are to be
  taken inside, too: theirs is chosen where they are traced.
  """
  token = _chosen.set(name)
  try:
    yield
  finally:
    _chosen.reset(token)
