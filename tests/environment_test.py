"""What is written of a start."""

import json

import jax
import ml_collections
import pytest

from gswinrmt_jax.runs import provenance


def test_every_start_has_what_its_result_depends_on(tmp_path, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_some_flag=3')
  monkeypatch.setenv('JAX_SOME_SETTING', 'on')
  monkeypatch.setenv('SOME_PASSWORD', 'secret')
  for seed, step in ((3, 0), (3, 17)):
    config = ml_collections.ConfigDict({'seed': seed, 'model': {'name': 'a'}})
    provenance.record(tmp_path, config, step)
  text = (tmp_path / 'environment.json').read_text()
  first, second = json.loads(text)
  assert (first['step'], second['step']) == (0, 17)
  assert first['seed'] == 3 and first['config']['model'] == {'name': 'a'}
  assert first['versions']['jax'] == jax.__version__
  assert first['variables']['XLA_FLAGS'] == '--xla_some_flag=3'
  assert first['variables']['JAX_SOME_SETTING'] == 'on'
  assert 'secret' not in text
  assert first['device'] == jax.devices()[0].device_kind
  assert first['device_count'] == len(jax.devices())
  for name in ('started', 'command', 'python', 'commit', 'platform_version'):
    assert name in first


@pytest.mark.parametrize('text', ['', '[{"step"', '7'])
def test_a_damaged_list_of_starts_stops_no_run(text, tmp_path):
  (tmp_path / 'environment.json').write_text(text)
  provenance.record(tmp_path, ml_collections.ConfigDict({'seed': 0}), 17)
  (start,) = json.loads((tmp_path / 'environment.json').read_text())
  assert start['step'] == 17
