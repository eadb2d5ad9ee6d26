"""Whose folder it is, and what is written there."""

import json

import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import run_folder


def _config(**changes):
  config = recipes.resolve(recipes.cifar10('rmt_compact')).unlock()
  config.update_from_flattened_dict(changes)
  return config


def test_config_comes_back_with_its_tuples(tmp_path):
  run_folder.open_folder(tmp_path / 'run', _config())
  loaded = run_folder.load_config(tmp_path / 'run')
  assert loaded.to_dict() == _config().to_dict()
  assert loaded.model.widths == (64, 128, 256, 512)
  assert not list(tmp_path.rglob('*.part'))


def test_an_older_recipe_gets_what_it_did_not_have(tmp_path):
  """The oldest of all: whatever a field does not say is as it was then."""
  older = {
      'seed': 0,
      'optimizer': {'b1': 0.5},
      'data': {'name': 'cifar10'},
      'model': {'name': 'rmt_compact', 'depths': [1, 1, 1, 2]},
  }
  (tmp_path / 'config.json').write_text(json.dumps(older))
  loaded = run_folder.load_config(tmp_path)
  today = recipes.cifar10('rmt_compact')
  today.optimizer.b1 = 0.5
  today.model.depths = (1, 1, 1, 2)
  assert {'ema_decay', 'init_from'} < set(
      loaded
  ) and 'schedule' in loaded.optimizer
  today = recipes.resolve(today)
  assert run_folder.differences(loaded, today) == []
  # It would go on as another model: the field was not there to be compared.
  changed = today.copy_and_resolve_references().unlock()
  changed.model.gate_fn = 'swish'
  assert run_folder.differences(loaded, changed) == [
      "model.gate_fn is 'sigmoid' there and 'swish' here"
  ]


def test_the_same_config_may_go_on_with_other_free_fields(tmp_path):
  run_folder.open_folder(tmp_path, _config())
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
  run_folder.open_folder(tmp_path, changed)
  # Not before the run has really gone on.
  assert run_folder.load_config(tmp_path).stop_after_epochs == 0
  run_folder.record_start(tmp_path, changed, 17)
  assert run_folder.load_config(tmp_path).stop_after_epochs == 3


def test_a_folder_of_before_a_field_has_its_default(tmp_path):
  config = _config().to_dict()
  del config['init_from'], config['data']['image_size']
  config['data']['workers'] = 3
  run_folder.write_json(tmp_path / 'config.json', config)
  loaded = run_folder.load_config(tmp_path)
  assert loaded.init_from == '' and loaded.data.image_size == 0
  assert loaded.data.workers == 3
  with pytest.raises(UserError, match=r'image_size is 0 there and 8 here'):
    run_folder.open_folder(tmp_path, _config(**{'data.image_size': 8}))


def test_another_config_is_refused_by_field_names(tmp_path):
  run_folder.open_folder(tmp_path, _config())
  with pytest.raises(UserError) as caught:
    run_folder.open_folder(
        tmp_path, _config(**{'seed': 1, 'model.widths': (64, 128, 256, 3)})
    )
  assert 'seed is 0 there and 1 here' in str(caught.value)
  assert 'model.widths is (64, 128, 256, 512) there and (64, 128, 256, 3)' in (
      str(caught.value)
  )
  assert 'layer_scale' not in str(caught.value)
  assert run_folder.load_config(tmp_path).seed == 0


def test_checkpoints_of_unknown_config_are_refused(tmp_path):
  (tmp_path / 'checkpoints').mkdir()
  with pytest.raises(UserError, match=r'no config\.json'):
    run_folder.open_folder(tmp_path, _config())


def test_a_folder_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='cannot write to'):
    run_folder.open_folder(tmp_path / 'file' / 'run', _config())


def test_no_run_folder_and_a_broken_one(tmp_path):
  with pytest.raises(UserError, match='is no run folder'):
    run_folder.load_config(tmp_path)
  (tmp_path / 'config.json').write_text('{"seed": ')
  with pytest.raises(UserError, match='cannot be read'):
    run_folder.load_config(tmp_path)


@pytest.mark.parametrize(
    'text',
    [
        '[]',
        '{}',
        '{"model": 3}',
        '{"model": {}}',
        '{"data": 3}',
        '{"model": {"name": "rmt_t"}, "a.b": 3}',
    ],
)
def test_json_that_is_no_recipe(text, tmp_path):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(UserError, match='is not the recipe of a run'):
    run_folder.load_config(tmp_path)


def test_a_recipe_of_a_later_version_is_one_line(tmp_path):
  fields = _config().to_dict()
  fields['model']['new_field'] = 3
  run_folder.write_json(tmp_path / 'config.json', fields)
  with pytest.raises(UserError, match=r"config\.json: .*no field 'new_field'"):
    run_folder.load_config(tmp_path)


def test_write_json_leaves_the_old_file_if_it_fails(tmp_path):
  path = tmp_path / 'a.json'
  run_folder.write_json(path, {'a': 1})
  with pytest.raises(TypeError):
    run_folder.write_json(path, {'a': object()})
  assert json.loads(path.read_text()) == {'a': 1}
