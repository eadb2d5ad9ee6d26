"""Points along an axis, and the power law through them."""

import pytest

from gswinrmt_jax.benchmark import scaling

SPEC = {
    'task': 'inference',
    'model': 'retention_compact',
    'fields': {},
    'batch': 16,
    'image_size': 224,
    'classes': 10,
}


def test_points():
  batches = scaling.points('batch', SPEC)
  assert list(batches) == [2, 4, 8, 16, 32]
  assert batches[32] == {**SPEC, 'batch': 32}
  assert list(scaling.points('batch', {**SPEC, 'batch': 1})) == [1, 2]
  assert list(scaling.points('resolution', SPEC)) == [224, 288, 352, 416, 512]
  depths = scaling.points('depth', SPEC)
  assert list(depths) == [9, 12, 15, 18]
  assert depths[9]['fields']['depths'] == [2, 2, 3, 2]


def test_the_exponent_is_that_of_the_power_law():
  macs = (1.0, 2.0, 4.0, 8.0)
  steep = scaling.Growth(
      'batch', (1, 2, 4, 8), tuple(m**1.5 for m in macs), macs
  )
  assert steep.exponent == pytest.approx(1.5)
  assert steep.as_json()['exponent'] == pytest.approx(1.5)
  flat = scaling.Growth('batch', (1, 2, 4, 8), (3.0,) * 4, macs)
  assert flat.exponent == pytest.approx(0.0)


def test_it_is_drawn(tmp_path):
  growth = scaling.Growth('depth', (9, 12), (1.0, 2.0), (1.0, 2.0))
  scaling.draw(tmp_path / 'a.png', 'a model', [growth, growth])
  assert (tmp_path / 'a.png').read_bytes()[:4] == b'\x89PNG'
