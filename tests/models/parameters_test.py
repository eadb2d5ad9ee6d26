"""Tests parameter counts.

Names of parameters: `golden_test`, `oracle_model_test`, `weights/rmt_test`.
"""

import parameter_counts
from parameter_counts import COUNTS
import pytest

import gswinrmt_jax
from gswinrmt_jax.models import named


def test_the_table_has_every_model():
  assert COUNTS.keys() == named.MODELS.keys()


@pytest.mark.parametrize('name', COUNTS)
def test_parameter_count(name):
  """`cost_test` counts RMT-T to RMT-L with every block."""
  classes, count = COUNTS[name]
  model = gswinrmt_jax.create_model(name, num_classes=classes)
  assert parameter_counts.count(model) == count
