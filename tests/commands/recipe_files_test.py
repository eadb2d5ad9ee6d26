"""Tests recipes made from command-line words; a mistake is one clear line."""

import json
import pathlib
import re

import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files, train
from gswinrmt_jax.errors import UserError


def test_a_path_and_a_bare_name_find_the_same_recipe(monkeypatch, tmp_path):
  by_name = recipe_files.load('cifar10_swat', [])
  path = recipe_files.folder() / 'cifar10_swat.py'
  assert recipe_files.load(str(path), []) == by_name
  monkeypatch.chdir(tmp_path)
  assert recipe_files.load('configs/cifar10_swat.py', []) == by_name
  assert by_name.model.name == 'swat_compact'


def test_a_file_of_ones_own_goes_first(monkeypatch, tmp_path):
  (tmp_path / 'cifar10_swat.py').write_text(
      'import ml_collections\n'
      'def get_config(arg=None):\n'
      '  return ml_collections.ConfigDict({"mine": arg})\n'
  )
  monkeypatch.chdir(tmp_path)
  assert recipe_files.load('cifar10_swat.py:7', []).mine == '7'


def test_a_recipe_without_an_argument_takes_none(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
      'import ml_collections\n'
      'def get_config():\n'
      '  return ml_collections.ConfigDict({"mine": 3})\n'
  )
  assert recipe_files.load(str(path), []).mine == 3
  with pytest.raises(
      UserError, match=r'mine\.py takes no argument: leave out :7'
  ):
    recipe_files.load(f'{path}:7', [])


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('x = 1', r'mine\.py is not a recipe: it has no function get_config'),
        ('def get_config(): pass', r'must return a ConfigDict, not None'),
    ],
)
@pytest.mark.parametrize('option', ['--workdir=w', '--help'])
def test_a_file_that_is_no_recipe(text, said, option, tmp_path, capsys):
  (tmp_path / 'mine.py').write_text(text)
  assert train.main([f'--config={tmp_path}/mine.py', option]) == 2
  printed = capsys.readouterr()
  assert re.search(said, printed.err) and not printed.out


def test_overrides_have_the_type_of_their_field():
  config = recipe_files.load(
      'cifar10_retention',
      [
          '--config.seed=3',
          '--config.optimizer.learning_rate=2e-3',
          '--config.model.depths=(1, 2, 3, 4)',
          '--config.model.drop_path_rate=0.5',
          '--config.model.window_size=7',
          '--config.model.gate=False',
          '--noconfig.augment.flip',
      ],
  )
  assert config.seed == 3 and config.optimizer.learning_rate == 2e-3
  assert config.model.depths == (1, 2, 3, 4)
  assert config.model.drop_path_rate == 0.5 and config.model.window_size == 7
  assert config.model.gate is False and config.augment.flip is False
  assert config.model.widths is None  # the named model's default


def test_of_a_repeated_override_the_last_counts():
  config = recipe_files.load(
      'cifar10_retention',
      [
          '--config.augment.erase_area=0.1,0.2',
          '--config.augment.erase_area=0.2,0.3',
      ],
  )
  assert config.augment.erase_area == (0.2, 0.3)
  with pytest.raises(UserError, match='num_epochs=ten: must be a whole number'):
    recipe_files.load(
        'cifar10_retention',
        ['--config.num_epochs=12', '--config.num_epochs=ten'],
    )


def test_the_learning_rate_follows_the_batch_unless_it_is_set():
  """It is 5e-4 per 512 images, also after a round trip through JSON."""
  rate = '--config.optimizer.learning_rate=3e-4'
  for overrides, expected in (
      ([], 2e-3),
      (['--config.batch_size=256'], 2.5e-4),
      (['--config.batch_size=256', rate], 3e-4),
      ([rate, '--config.batch_size=256'], 3e-4),
  ):
    config = recipe_files.load('imagenet_rmt:s', overrides)
    assert config.is_locked
    assert config.optimizer.learning_rate == pytest.approx(expected, rel=1e-12)
    fields = json.loads(json.dumps(recipes.resolve(config).to_dict()))
    found = fields['optimizer']['learning_rate']
    assert isinstance(found, float) and found == pytest.approx(expected)


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        ('cifar10_swta', 'cifar10_swta (did you mean cifar10_swat?)'),
        ('nowhere/x.py', 'nowhere/x.py; `gswinrmt train --help` lists the rec'),
        ('digits_rmt:smok', "'smok' (known, in this order: 'smoke')"),
        ('imagenet_rmt', 'name one of t, s, b, l after the colon'),
        ('imagenet_rmt:t,token_label', 'T has no dense head'),
        ('imagenet_rmt:s,token_label,x', "'x' (known, in this order: 'smoke')"),
        (
            'imagenet_rmt:t,smok',
            "'smok' (known, in this order: 'token_label', 'smoke')",
        ),
        ('digits_rmt sed=1', 'sed (did you mean --config.seed?)'),
        (
            'digits_rmt model.dephts=(1,)',
            'model.dephts (did you mean --config.model.depths?)',
        ),
        (
            'digits_rmt optimizer.widths=(1,)',
            '(did you mean --config.model.widths?)',
        ),
        ('digits_rmt seed=abc', '--config.seed=abc: must be a whole number'),
        ('digits_rmt augment.flip=7', 'True or False'),
        (  # The name of one begins that of the other.
            'digits_rmt augment.flip=True augment.flip_vertical=x',
            'flip_vertical=x: must be True or False',
        ),
        ('digits_rmt seed', 'seed: must be a whole number'),
        ('digits_rmt seed.x=1', 'no config field seed.x'),
        ('digits_rmt data=digits', 'a group of fields: crop_ratio,'),
    ],
)
def test_mistakes_are_one_line(call, said):
  spec, *overrides = call.split()
  with pytest.raises(UserError) as caught:
    recipe_files.load(spec, [f'--config.{word}' for word in overrides])
  message = str(caught.value)
  assert said in message, message
  assert '\n' not in message and 'Traceback' not in message
  assert len(message) < 300, message


def test_a_mistake_in_a_recipe_file_shows_its_line(tmp_path):
  path = tmp_path / 'broken.py'
  path.write_text('def get_config(arg=None):\n  return recipe\n')
  with pytest.raises(NameError, match='recipe') as caught:
    recipe_files.load(str(path), [])
  place = caught.traceback[-1]
  assert (str(place.path), place.lineno) == (str(path), 1)  # from 0


def test_default_workdir():
  names = {
      'configs/a.py': 'runs/a',
      'a': 'runs/a',
      'x/a.py:smoke': 'runs/a_smoke',
      'a:t,smoke': 'runs/a_t_smoke',
  }
  for spec, folder in names.items():
    assert recipe_files.default_workdir(spec) == pathlib.Path(folder)
