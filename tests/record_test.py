"""What is made of timings: ratios, MFU, roofline, the table."""

import json

import pytest

from gswinrmt_jax.benchmark import measure, record, timing

RATES = {'flops': 1e12, 'bytes': 1e10}


def _outcome(name, seconds, images=4, peak=(3_000_000_000, 'device'), **facts):
  return measure.Measured(
      name,
      {'task': 'train'},
      {'images': images, **facts},
      timing.Timing((seconds, 2 * seconds, seconds), 7),
      peak,
  )


def test_rows_hold_others_to_the_first():
  ours = _outcome('ours', 0.5, flops=1e11, ideal_bytes=1e9)
  theirs = _outcome('theirs', 0.75)
  absent = measure.Measured('absent', {'task': 'train'}, error='no wheel')
  rows = record.rows([ours, theirs, absent], RATES)
  assert rows[0]['milliseconds'] == 500 and rows[0]['calls'] == 7
  assert rows[0]['images_per_second'] == 8
  assert rows[0]['mfu'] == pytest.approx(0.1 / 0.5)
  # 0.1 s of products and 0.1 s of memory, in series.
  assert rows[0]['of_roofline'] == pytest.approx(0.5 / 0.2)
  assert rows[1]['ours_is'] == pytest.approx(1.5)
  assert 'mfu' not in rows[1] and 'of_roofline' not in rows[1]
  assert rows[2] == {
      'arm': 'absent', 'task': 'train', 'not_measured': 'no wheel',
  }  # fmt: skip
  json.dumps(rows)


def test_the_ratio_is_of_images_not_of_calls():
  """A peer that takes half the images a call is not twice as fast."""
  rows = record.rows(
      [_outcome('ours', 1.0, images=8), _outcome('half', 0.5, images=4)], RATES
  )
  assert rows[1]['ours_is'] == pytest.approx(1.0)


def test_the_table():
  rows = record.rows(
      [
          _outcome('ours', 0.5, flops=1e11),
          _outcome('theirs', 0.75, peak=(None, 'not measured')),
          measure.Measured('absent', {}, error='no wheel'),
      ],
      RATES,
  )
  lines = record.table(rows).splitlines()
  cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]
  assert cells[0][:2] == ['', 'ms'] and len({len(c) for c in cells[:4]}) == 1
  assert cells[2] == [
      'ours', '500', '25.0%', '8', '1.00x', '20.0%', '', '3.00 (device)'
  ]  # fmt: skip
  assert cells[3][4] == '1.50x' and cells[3][-1] == 'not measured'
  assert lines[-1] == 'absent: not measured: no wheel'


def test_where_it_ran_and_where_it_goes():
  facts = {'platform': 'cpu', 'device': 'cpu', 'versions': {'jax': '1'}}
  machine = record.machine(facts, 1)
  assert machine['threads'] == 1 and machine['command'].startswith('gswinrmt')
  assert machine['device'] == 'cpu' and machine['cores'] >= 1
  json.dumps(machine)
  path = record.default_path(['rmt_t', 'train'], 'NVIDIA H200')
  assert str(path) == 'benchmarks/results/rmt_t_train_nvidia_h200.json'
