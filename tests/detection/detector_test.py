"""Tests whole detectors: parameters, padding, mistakes."""

import jax
import pytest

from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense.detector import create_detector

# Of the released detectors' own modules, at 80 classes.
_COUNTS = [
    ('rmt_t', 'retina', 23_017_364),
    ('rmt_s', 'retina', 35_650_388),
    ('rmt_b', 'retina', 62_862_844),
    ('rmt_l', 'retina', 104_419_276),
    ('rmt_t', 'mask', 32_934_800),
    ('rmt_s', 'mask', 45_567_824),
    ('rmt_b', 'mask', 72_784_376),
    ('rmt_l', 'mask', 114_054_088),
    ('rmt_s', 'cascade', 83_403_026),
    ('rmt_b', 'cascade', 110_619_578),
]


@pytest.mark.parametrize(('name', 'head', 'count'), _COUNTS)
def test_parameter_counts(name, head, count):
  model = create_detector(name, head=head)
  shapes = factory.variable_shapes(model, (64, 64, 3))['params']
  assert sum(x.size for x in jax.tree.leaves(shapes)) == count
