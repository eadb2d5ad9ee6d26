"""Values are kept while their memory is given away, however they are kept."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.train import snapshot

_SIZE = 4 * (1000 * 24 + 3)  # bytes of `_tree`


def _tree():
  return {
      'kernel': jnp.arange(24_000.0).reshape(1000, 24),
      'small': {'bias': jnp.array([1, 2, 3], jnp.int32)},
  }


def _overwrite(tree):
  """Gives the memory of a tree away and fills it with something else."""
  fill = jax.jit(
      lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0
  )
  return jax.block_until_ready(fill(tree))


class _Device:
  """Of an accelerator, what it says of its memory."""

  def __init__(self, free):
    peak = 10**6
    self.stats = {'bytes_limit': int(peak + free) / 0.9}
    self.stats |= {'peak_bytes_in_use': peak, 'bytes_in_use': 0}

  def memory_stats(self):
    return self.stats


@pytest.mark.parametrize(
    ('free', 'waits'), [(None, False), (_SIZE + 8, False), (_SIZE - 8, True)]
)
def test_values_survive_donation_and_wait_only_for_want_of_room(
    monkeypatch, free, waits
):
  tree = _tree()
  before = jax.tree.map(np.array, tree)
  fetched = []
  if free is not None:
    monkeypatch.setattr(jax, 'local_devices', lambda: [_Device(free)])
  with monkeypatch.context() as patch:
    fetch = snapshot.devices.fetch
    patch.setattr(
        snapshot.devices,
        'fetch',
        lambda tree: fetched.append(1) or jax.tree.map(np.array, fetch(tree)),
    )
    values = snapshot.Snapshots().take(tree)
    assert bool(fetched) == waits
    _overwrite(tree)
    assert tree['kernel'].is_deleted()
    found = values()
  chex.assert_trees_all_equal(found, before)
  chex.assert_trees_all_equal_dtypes(found, before)


def test_room_is_asked_for_once(monkeypatch):
  """The first copy is in the peak of those behind it."""
  device = _Device(_SIZE + 8)
  monkeypatch.setattr(jax, 'local_devices', lambda: [device])
  snapshots = snapshot.Snapshots()
  snapshots.take(_tree())
  device.stats['peak_bytes_in_use'] += _SIZE
  monkeypatch.setattr(snapshot.devices, 'fetch', lambda tree: 1 / 0)
  snapshots.take(_tree())
