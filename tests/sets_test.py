"""The named sets ask for the runs that they should."""

import pathlib

import pytest

from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import sets, switches

OUT = pathlib.Path('out')


def _jobs(name, seeds=1, overrides=()):
  return sets.jobs(
      name, OUT, seeds=seeds, overrides=overrides, load=recipe_files.load
  )


def test_a_round_has_every_variant_before_the_next_seed():
  jobs = _jobs('table5', seeds=2)
  assert [str(job.folder) for job in jobs] == [
      f'out/table5/{name}_s{seed}'
      for seed in (0, 1)
      for name in ('rmt', 'retention', 'swat')
  ]
  assert [job.config.seed for job in jobs] == [0, 0, 0, 1, 1, 1]
  assert jobs[4].config.model.name == 'retention_compact'
  assert jobs[4].config.model.window_size == 14  # every field has its value
  assert jobs[4].arguments == (
      '--config=cifar10_retention',
      '--workdir=out/table5/retention_s1',
      '--config.seed=1',
  )


def test_table3_is_the_large_models_and_takes_another_data_set():
  jobs = _jobs('table3', overrides=['--config.data.name=tiny'])
  assert [job.config.model.name for job in jobs] == [
      'rmt_large',
      'retention_large',
      'swat_large',
  ]
  assert {job.config.data.name for job in jobs} == {'tiny'}
  assert '--config.data.name=tiny' in jobs[0].arguments


def test_ablations_have_every_switch_that_is_felt():
  everything = {
      f'{base}_{switch}'
      for base, table in switches.SWITCHES.items()
      for switch in table
  }
  idle = {f'{base}_window_14' for base in ('bare', 'rmt')}
  idle |= {f'{base}_no_shift' for base in ('retention', 'swat')}
  for name, expected in (
      ('ablation-mini', everything),
      ('ablation-cifar10', everything - idle),
  ):
    found = [entry.name for entry in sets.SETS[name]]
    assert len(found) == len(set(found)) and set(found) == expected
  by_name = {entry.name: entry.spec for entry in sets.SETS['ablation-mini']}
  config = recipe_files.load(by_name['swat_window_7'], [])
  assert config.model.name == 'swat_large' and config.model.window_size == 7
  assert config.data.name == 'mini_imagenet'


def test_smoke_has_what_a_report_needs_in_a_minute_a_run():
  jobs = _jobs('smoke')
  assert {job.config.data.name for job in jobs} == {'digits'}
  assert {job.config.num_epochs for job in jobs} == {4}
  labels = {switches.label(job.config.model) for job in jobs}
  assert labels == {'rmt', 'retention', 'swat', 'retention,no_gate'}


@pytest.mark.parametrize(
    ('name', 'overrides', 'said'),
    [
        ('table6', [], "no experiment 'table6': table5, table3"),
        ('table5', ['--config.seed=3'], 'the seeds of an experiment are'),
        ('table5', ['--config.sed=3'], 'did you mean seed'),
    ],
)
def test_mistakes_are_told_before_anything_runs(name, overrides, said):
  with pytest.raises(UserError, match=said):
    _jobs(name, overrides=overrides)


def test_the_small_windowed_set_has_windows():
  """Windows of 4 x 4 among 16 x 16 tokens; RMT attends to whole maps."""
  jobs = _jobs('table3-small')
  windows = {j.config.model.name: j.config.model.window_size for j in jobs}
  assert windows == {'rmt_large': 0, 'retention_large': 4, 'swat_large': 4}
  for job in jobs:
    side = job.config.data.image_size // job.config.model.patch_size
    assert side == 16 and len(job.config.model.widths) == 4


def test_only_some_of_a_set():
  def names(only):
    jobs = sets.jobs(
        'ablation-cifar10',
        OUT,
        seeds=1,
        overrides=(),
        only=only,
        load=recipe_files.load,
    )
    return [job.folder.name for job in jobs]

  assert names('retention_no_*, retention_base')[0] == 'retention_base_s0'
  assert 'retention_no_gate_s0' in names('retention_no_*')
  assert 'swat_no_lce_s0' not in names('retention_no_*')
  with pytest.raises(UserError, match=r"no run 'retentoin' in the set: bare_"):
    names('swat_*,retentoin')
