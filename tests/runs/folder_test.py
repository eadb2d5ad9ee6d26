"""Tests the run folder: its config, its lock, and the record of each start."""

import json

import jax
import ml_collections
import pytest

import gswinrmt_jax
from gswinrmt_jax import files, recipes
from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import run_folder


def _config(**changes):
  config = recipes.resolve(recipes.cifar10('rmt_compact')).unlock()
  config.update_from_flattened_dict(changes)
  return config


def test_config_comes_back_with_its_tuples(tmp_path):
  run_folder.write_config(tmp_path, _config())
  loaded = run_folder.load_config(tmp_path)
  assert loaded.to_dict() == _config().to_dict()
  assert loaded.model.widths == (64, 128, 256, 512)
  assert not list(tmp_path.rglob('*.part'))


def test_an_older_recipe_gets_what_it_did_not_have(tmp_path):
  """In the oldest config, missing fields have the values of that time."""
  older = {
      'seed': 0,
      'optimizer': {'b1': 0.5},
      'data': {'name': 'cifar10'},
      'model': {'name': 'rmt_compact', 'depths': [1, 1, 1, 2]},
  }
  (tmp_path / 'config.json').write_text(json.dumps(older))
  loaded = run_folder.load_config(tmp_path)
  today = recipes.defaults('rmt_compact')
  today.optimizer.b1 = 0.5
  today.model.depths = (1, 1, 1, 2)
  assert {'ema_decay', 'init_from'} < set(
      loaded
  ) and 'schedule' in loaded.optimizer
  today = recipes.resolve(today)
  assert run_folder.differences(loaded, today) == []
  # A missing field is compared too; else the run would resume another model.
  changed = today.copy_and_resolve_references().unlock()
  changed.model.gate_fn = 'swish'
  assert run_folder.differences(loaded, changed) == [
      "model.gate_fn is 'sigmoid' there and 'swish' here"
  ]


def test_the_same_config_may_go_on_with_other_free_fields(tmp_path):
  run_folder.write_config(tmp_path, _config())
  changed = {
      'log_every_steps': 7,
      'stop_after_epochs': 3,
      'eval_batch_size': 11,
      'data.dir': 'elsewhere',
      'data.storage': 'decode',
      'data.workers': 2,
      'data.test_split': 'val',
      'compile_effort': 'quick',
  }
  changed = _config(**changed)
  run_folder.check_folder(tmp_path, changed)
  run_folder.write_config(tmp_path, changed, replace=False)
  # The config is replaced only once the run has really resumed.
  assert run_folder.load_config(tmp_path).stop_after_epochs == 0
  run_folder.write_config(tmp_path, changed)
  assert run_folder.load_config(tmp_path).stop_after_epochs == 3


def test_another_config_is_refused_by_field_names(tmp_path):
  run_folder.write_config(tmp_path, _config())
  with pytest.raises(UserError) as caught:
    run_folder.check_folder(
        tmp_path, _config(**{'seed': 1, 'model.widths': (64, 128, 256, 3)})
    )
  assert 'seed is 0 there and 1 here' in str(caught.value)
  assert 'model.widths is (64, 128, 256, 512) there and (64, 128, 256, 3)' in (
      str(caught.value)
  )
  assert 'layer_scale' not in str(caught.value)
  assert run_folder.load_config(tmp_path).seed == 0
  assert '; choose another --workdir (--config.init_from=RUN' in (
      str(caught.value)
  )


def test_another_absolute_path_of_class_folders_is_no_other_config(tmp_path):
  before, after = (_config(**{'data.name': f'/{x}/cats'}) for x in 'ab')
  run_folder.write_config(tmp_path, before)
  run_folder.check_folder(tmp_path, after)
  after.seed = 1
  with pytest.raises(UserError, match=r"data\.name is '/a/.*; seed is 0 there"):
    run_folder.check_folder(tmp_path, after)
  with pytest.raises(
      UserError, match=r"data\.name is '/a/cats' there and 'dig"
  ):
    run_folder.check_folder(tmp_path, _config(**{'data.name': 'digits'}))


@pytest.mark.parametrize(
    'name', ['checkpoints', 'metrics.jsonl', 'summary.json']
)
def test_files_of_an_unknown_run_are_refused(tmp_path, name):
  (tmp_path / name).mkdir()
  with pytest.raises(UserError, match=rf'has {name} but no config\.json'):
    run_folder.check_folder(tmp_path, _config())


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        (None, 'is not a run folder'),
        ('{"seed": ', 'cannot be read'),
        ('{"model": {}}', 'is not the recipe of a run'),
        ('{"data": 3}', 'is not the recipe of a run'),
        (
            '{"model": {"name": "rmt_t"}, "data": {"name": "x"}, "a.b": 3}',
            r'is not the recipe of a run: .*a\.b',
        ),
    ],
)
def test_what_is_no_config(text, said, tmp_path):
  if text is not None:
    (tmp_path / 'config.json').write_text(text)
  with pytest.raises(UserError, match=said):
    run_folder.load_config(tmp_path)


def test_a_recipe_of_a_later_version_is_one_line(tmp_path):
  fields = _config().to_dict()
  fields['model']['new_field'] = 3
  files.write_json(tmp_path / 'config.json', fields)
  with pytest.raises(UserError, match=r"config\.json: .*no field 'new_field'"):
    run_folder.load_config(tmp_path)


# The lock.


def test_a_folder_in_which_nothing_was_begun_is_not_left(tmp_path):
  with pytest.raises(ZeroDivisionError), run_folder.lock(tmp_path / 'a'):
    raise ZeroDivisionError
  assert not (tmp_path / 'a').exists()
  with run_folder.lock(tmp_path):
    pass
  assert tmp_path.exists()  # existed before


def test_without_a_lock_nothing_is_removed(tmp_path, monkeypatch):
  """It may be what another process is writing."""
  left = tmp_path / '.config.json.abc.part'
  checkpoint = tmp_path / 'checkpoints' / '.3.abc.part'
  monkeypatch.setattr(files, '_lock', lambda *_: False)
  for locked in (False, True):
    checkpoint.mkdir(parents=True, exist_ok=True)
    left.touch()
    with run_folder.lock(tmp_path) as held:
      assert held == locked
    checkpointer.Checkpointer(checkpoint.parent, shared=not locked).clean()
    assert left.exists() == checkpoint.exists() == (not locked)
    monkeypatch.undo()


# The record of each start.


def test_every_start_has_what_its_result_depends_on(tmp_path, monkeypatch):
  jax.devices()  # XLA reads its flags once, so the fake flag is ignored.
  monkeypatch.setenv('XLA_FLAGS', '--xla_some_flag=3')
  monkeypatch.setenv('JAX_SOME_SETTING', 'on')
  monkeypatch.setenv('SOME_PASSWORD', 'secret')
  for seed, step in ((3, 0), (3, 17)):
    config = ml_collections.ConfigDict({'seed': seed, 'model': {'name': 'a'}})
    run_folder.record_start(tmp_path, config, step)
  text = (tmp_path / 'environment.json').read_text()
  first, second = json.loads(text)
  assert (first['step'], second['step']) == (0, 17)
  assert first['seed'] == 3 and first['config']['model'] == {'name': 'a'}
  assert first['versions']['jax'] == jax.__version__
  assert first['versions']['gswinrmt_jax'] == gswinrmt_jax.__version__
  assert first['variables']['XLA_FLAGS'] == '--xla_some_flag=3'
  assert first['variables']['JAX_SOME_SETTING'] == 'on'
  assert 'secret' not in text
  assert first['device'] == jax.devices()[0].device_kind
  assert first['device_count'] == len(jax.devices())
  for name in ('started', 'command', 'python', 'commit', 'platform_version'):
    assert name in first
