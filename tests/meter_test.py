"""Metrics are gathered without waiting, and checked when read."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import meter


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
  assert set(values) == {'loss'}
  assert speed['images_per_second'] == pytest.approx(3 * 7 / speed['seconds'])
  assert 0.002 / speed['seconds'] <= speed['data_wait'] < 1
  readings.add(_metrics([8.0]), 1)
  values, speed = readings.read(4)
  assert values['loss'].tolist() == [8.0] and speed['data_wait'] == 0


def test_the_step_that_is_not_finite_is_named():
  readings = meter.Meter(batch_size=7)
  readings.add(_metrics([1.0, jnp.inf, jnp.nan]), 3)
  with pytest.raises(UserError, match=r'at step 12 .*steps 11 to 13'):
    readings.read(13)
