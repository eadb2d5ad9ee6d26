"""Metrics are gathered without waiting, and checked when read."""

import json
import time

import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.errors import RunError
from gswinrmt_jax.runs import meter


def _metrics(loss):
  loss = jnp.asarray(loss)
  return {'loss': loss, 'finite': jnp.isfinite(loss)}


def test_read_returns_each_step_once_and_the_speed():
  readings = meter.Meter(batch_size=7)
  readings.add(_metrics([1.0, 2.0, 9.0]), 2)  # the last is of no step
  readings.add(_metrics([4.0]), 1)
  with readings.waiting():
    time.sleep(0.002)
  values, speed = readings.read(3)
  np.testing.assert_array_equal(values['loss'], [1.0, 2.0, 4.0])
  assert set(values) == {'loss', 'finite'} and values['finite'].all()
  assert speed['images_per_second'] == pytest.approx(3 * 7 / speed['seconds'])
  assert 0.002 / speed['seconds'] <= speed['data_wait'] < 1
  readings.add(_metrics([8.0]), 1)
  values, speed = readings.read(4)
  assert values['loss'].tolist() == [8.0] and speed['data_wait'] == 0


def test_the_step_that_is_not_finite_is_named():
  readings = meter.Meter(batch_size=7)
  readings.add(_metrics([1.0, jnp.inf, jnp.nan]), 3)
  with pytest.raises(RunError, match=r'at step 12 .*steps 11 to 13'):
    readings.read(13)


def test_where_steps_are_skipped_they_are_told_and_no_error():
  readings = meter.Meter(batch_size=7, skip=True)
  readings.add(_metrics([1.0, jnp.inf, jnp.nan]), 3)
  values, _ = readings.read(13)
  assert values['finite'].tolist() == [1.0, 0.0, 0.0]


def test_an_interval_goes_on_in_another_process():
  """What was gathered travels as JSON, and rounds nothing."""
  readings = meter.Meter(batch_size=7)
  losses = [1 / 3, 2 / 3, 1e-8]
  readings.add(_metrics(losses[:2]), 2)
  with readings.waiting():
    time.sleep(0.02)
  pending = json.loads(json.dumps(readings.pending(2)))
  assert pending == json.loads(json.dumps(readings.pending(2))) | {
      'seconds': pending['seconds']
  }
  resumed = meter.Meter(batch_size=7, pending=pending)
  for of in (readings, resumed):
    of.add(_metrics(losses[2:]), 1)
  (values, _), (again, speed) = readings.read(3), resumed.read(3)
  for name in values:
    np.testing.assert_array_equal(values[name], again[name])
  assert again['loss'].tolist() == np.float32(losses).astype(float).tolist()
  # The time before counts, as do its images.
  assert speed['seconds'] >= 0.02
  assert 0.02 / speed['seconds'] <= speed['data_wait'] < 1
  assert resumed.pending(3) == {}


def test_what_is_not_finite_is_not_handed_on():
  readings = meter.Meter(batch_size=7)
  readings.add(_metrics([1.0, jnp.nan]), 2)
  with pytest.raises(RunError, match=r'at step 6 .*steps 5 to 6'):
    readings.pending(6)
