"""Rows of training that is fed, held to training that is not."""

import json
import pathlib

import pytest

from gswinrmt_jax.benchmark import feeding, made_pictures, measure, timing
from gswinrmt_jax.errors import UserError

RATES = {'flops': 1e12, 'bytes': 1e10}
SPEC = {'model': 'm', 'batch': 4, 'image_size': 224, 'classes': 5}


def _outcome(name, seconds, images, steps):
  return measure.Measured(
      name,
      {'task': 'pipeline'},
      {'images': images, 'steps': steps},
      timing.Timing(tuple(seconds), 7),
      (3_000_000_000, 'device'),
  )


def _outcomes():
  return [
      _outcome('without', (1.0, 2.0, 4.0), images=20, steps=5),
      # Half as fast in each round but the last; two steps a dispatch.
      _outcome('disk', (0.8, 1.6, 1.6), images=8, steps=2),
      measure.Measured('decode', {'task': 'pipeline'}, error='no memory'),
  ]


def test_rows_are_held_to_the_arm_without():
  rows = feeding.rows(_outcomes(), RATES)
  assert [row.get('of_without') for row in rows] == [
      1.0,
      pytest.approx(0.5),
      None,
  ]
  assert [row.get('step_milliseconds') for row in rows] == [400, 800, None]
  assert [row.get('images_per_second') for row in rows] == [10, 5, None]
  # 50,000 images at 10 and 5 a second.
  assert rows[0]['seconds_of_50000_images'] == 5000
  assert rows[1]['seconds_of_50000_images'] == 10000
  assert rows[2]['not_measured'] == 'no memory'
  json.dumps(rows)


def test_no_ratio_where_the_arm_without_failed():
  rows = feeding.rows(_outcomes()[::-1], RATES)
  assert rows[1]['of_without'] is None
  assert '|            |' in feeding.table(rows)


def test_the_table():
  lines = feeding.table(feeding.rows(_outcomes(), RATES)).splitlines()
  cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]
  assert cells[0][4:6] == ['of without', 's/50,000']
  assert cells[3] == [
      'disk', '800', '12.5%', '5', '0.500', '10,000.0', '3.00 (device)'
  ]  # fmt: skip
  assert lines[-1] == 'decode: not measured: no memory'


def test_arms_differ_in_what_feeds_them():
  fed = feeding.Feeding(('device', 'decode'), images=9, workers=2)
  arms = fed.arms(SPEC, pathlib.Path('/here'))
  assert list(arms) == ['m, without', 'm, device', 'm, decode']
  assert [arm['storage'] for arm in arms.values()] == [None, 'device', 'decode']
  for arm in arms.values():
    assert (arm['batch'], arm['dir'], arm['workers']) == (4, '/here', 2)


def test_pictures_are_as_large_as_needed(monkeypatch):
  made = []
  monkeypatch.setattr(
      made_pictures, 'prepare', lambda *args, **how: made.append((*args, how))
  )
  fed = feeding.Feeding(('disk',), images=9, workers=None)
  folder = pathlib.Path('/here')
  fed.prepare(SPEC, folder)
  fed.prepare({**SPEC, 'image_size': 32}, folder)
  assert made == [
      (folder, 9, {'classes': 5, 'width': 500, 'height': 375}),
      (folder, 9, {'classes': 5, 'width': 32, 'height': 32}),
  ]
  with pytest.raises(UserError, match='--images 9: there are 10 classes'):
    fed.prepare({**SPEC, 'classes': 10}, folder)
