"""Fixtures of the tests that compare with mmdetection."""

import detection_reference as reference
import jax
import pytest


@pytest.fixture
def float64():
  with jax.enable_x64(True):
    yield


@pytest.fixture
def want():
  """The reference's arrays by name."""
  return reference.arrays()
