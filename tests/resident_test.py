"""What is on the devices, and when."""

import jax
import numpy as np
import pytest
import tiny

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import resident

RECORDS = tiny.arrays(0, 25)
SIZE = 25 * 6 * 7 * 3


@pytest.fixture
def room(monkeypatch):
  """Gives the device so many free bytes, of a few more."""

  def give(free):
    class Device:

      def memory_stats(self):
        return free and {'bytes_limit': free + 9, 'bytes_in_use': 9}

    monkeypatch.setattr(jax, 'local_devices', lambda: [Device()])

  return give


def _place(storage):
  return resident.place(RECORDS, storage, jax.device_put)


def test_records_on_the_device_are_those_of_the_host(room):
  room(SIZE)
  placed = _place('device')
  assert isinstance(placed.arrays['image'], jax.Array)
  np.testing.assert_array_equal(placed.arrays['image'], RECORDS.image)
  np.testing.assert_array_equal(placed.arrays['label'], RECORDS.label)
  assert len(placed) == 25 and placed.image_shape == (6, 7, 3)
  assert placed.source is RECORDS.source
  assert placed.gather(np.arange(3)) == {}
  assert resident.arrays(placed) is placed.arrays


@pytest.mark.parametrize(
    ('storage', 'free', 'there'),
    [
        ('auto', None, False),  # a CPU
        ('device', None, True),
        ('auto', 10 * SIZE, True),
        ('auto', 10 * SIZE - 10, False),
        ('memory', 10 * SIZE, False),
        ('disk', 10 * SIZE, False),
        ('decode', 10 * SIZE, False),
    ],
)
def test_where_records_go(room, storage, free, there):
  room(free)
  placed = _place(storage)
  assert isinstance(placed, resident.Resident) == there
  assert there or (placed is RECORDS and resident.arrays(placed) == {})


def test_no_room_is_one_line(room):
  room(SIZE - 1)
  with pytest.raises(UserError, match=r'25 images would take .* are free: set'):
    _place('device')


def test_evaluation_sees_the_batches_of_the_host():
  placed = _place('device')
  found = list(batches_lib.eval_batches(placed, batch_size=10))
  want = list(batches_lib.eval_batches(RECORDS, batch_size=10))
  for batch, other in zip(found, want, strict=True):
    batch = resident.complete(jax.device_put(batch), placed)
    for name, array in other.items():  # the padding's black images as well
      np.testing.assert_array_equal(batch[name], array, strict=True)
    assert resident.complete(other, RECORDS) is other
