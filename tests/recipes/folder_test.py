"""Tests what the recipe for a folder of images chooses, and that it may."""

import contextlib
import dataclasses
import io
import json
import pathlib
from unittest import mock

import folder_data
import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import main, recipe_files
from gswinrmt_jax.data import checks, datasets, digits
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import data as data_lib
from gswinrmt_jax.train import run as run_lib
from gswinrmt_jax.train import train_loop
from gswinrmt_jax.weights import load


def _write(folder, count, size=(48, 48), seed=0):
  """Writes `count` images of width and height `size`, each another one."""
  rng = np.random.default_rng(seed)
  folder.mkdir(parents=True)
  for index in range(count):
    pixels = rng.integers(0, 256, (*size[::-1], 3), np.uint8)
    PIL.Image.fromarray(pixels).save(folder / f'{index:03}.png')


@pytest.fixture(name='own')
def _own(tmp_path, monkeypatch):
  """Returns a folder of 80 images in two classes, without splits."""
  monkeypatch.chdir(tmp_path)
  for seed, name in enumerate(('ant', 'bee')):
    _write(tmp_path / 'own' / name, 40, seed=seed)
  return tmp_path / 'own'


def _adapted(folder, *overrides):
  name = f'--config.data.name={folder}'
  _, config, lines = recipe_files.adapted('folder', [name, *overrides])
  recipes.resolve(config)
  return config, lines


def test_it_fits_the_number_and_size_of_the_images(own):
  """64 of 80 images train: 30,000 / 64 = 469 epochs, 1.06e-3 at batch 16."""
  config, lines = _adapted(own)
  assert (config.batch_size, config.num_epochs) == (16, 469)
  assert config.eval_batch_size == 8 and config.eval_every_epochs == 9
  assert config.optimizer.warmup_epochs == 23.45
  assert config.optimizer.learning_rate == 1.1e-3
  # 48 is as near to 32 as to 64; NumPy and Python round to the even multiple.
  assert config.data.image_size == 64 and config.augment.crop_padding == 8
  assert config.data.train_crop == 'resize'
  assert lines == [
      'image size 64, for a median shorter side of 48 pixels',
      '469 epochs of 64 images in batches of 16, with warm-up over the first '
      '23.45',
      'learning rate 0.0011',
  ]


def test_many_large_images_of_any_shape(tmp_path):
  """2,200 train: 30 epochs are the least, 128 is the largest batch."""
  file = io.BytesIO()
  PIL.Image.new('1', (500, 375)).save(file, 'PNG')
  for split, count in (('train', 1100), ('val', 3)):
    for name in ('ant', 'bee'):
      folder = tmp_path / 'big' / split / name
      folder.mkdir(parents=True)
      for index in range(count):
        (folder / f'{index}.png').write_bytes(file.getvalue())
  config, lines = _adapted(tmp_path / 'big')
  assert (config.batch_size, config.num_epochs) == (128, 30)
  assert config.optimizer.learning_rate == 3e-3
  assert config.eval_batch_size == 6
  assert config.data.image_size == 128
  assert config.model.stem_strides == (2, 1, 2, 1)
  assert config.data.train_crop == 'random_resized'
  assert config.data.eval_crop == 1 and config.augment.crop_padding == 0
  assert lines[0] == (
      'image size 128, for a median shorter side of 375 pixels; random crops '
      'in training and central squares in evaluation, as not all images are '
      'square'
  )
  config, lines = _adapted(tmp_path / 'big', '--config.data.train_crop=resize')
  assert (config.data.train_crop, config.data.eval_crop) == ('resize', 0)
  assert config.data.storage == 'memory' and config.augment.crop_padding == 16
  assert lines[0] == 'image size 128, for a median shorter side of 375 pixels'


def test_fine_tuning_takes_over_what_the_weights_are_for(own):
  config, lines = _adapted(own, '--config.init_from=cifar10_small')
  assert config.data.image_size == 32
  assert config.data.normalization == 'cifar10'
  assert config.model.name == 'retention_compact'
  assert config.model.widths == (48, 96, 192)
  assert config.num_epochs == 157  # 10,000 / 64
  assert config.optimizer.learning_rate == 3.5e-4
  assert config.ema_warmup and config.ema_decay == 0.99
  assert lines[0] == ('model and normalisation of cifar10_small, image size 32')
  # Another model.
  config, _ = _adapted(own, '--config.init_from=digits_small')
  assert config.model.depths == (1, 1, 2, 1)
  assert config.data.normalization == 'digits'
  probe = '--config.optimizer.freeze=backbone'
  config, _ = _adapted(own, '--config.init_from=cifar10_small', probe)
  assert config.optimizer.learning_rate == 3.5e-3


def test_a_classifier_starts_from_a_segmenter(own, monkeypatch):
  card = load.read_card('cifar10_small')
  fields = {**card.fields, 'feature_norm': True}  # refused in a classifier
  card = dataclasses.replace(card, fields=fields, dense={'head': 'uper'})
  monkeypatch.setattr(load, 'read_card', lambda path: card)
  config, _ = _adapted(own, '--config.init_from=cifar10_small')
  assert tuple(config.model.widths) == (48, 96, 192)
  assert not config.model.feature_norm


def test_a_normalisation_without_a_name_is_refused(own, monkeypatch):
  card = load.read_card('cifar10_small')
  card = dataclasses.replace(card, mean=(0.5,) * 3, std=(0.25,) * 3)
  monkeypatch.setattr(load, 'read_card', lambda path: card)
  tuned = '--config.init_from=cifar10_small'
  with pytest.raises(
      UserError, match=r'by mean \(0\.5, .* no name: set it, such as to im'
  ):
    _adapted(own, tuned)
  chosen = '--config.data.normalization=imagenet'
  config, lines = _adapted(own, tuned, chosen, '--config.num_epochs=3')
  assert config.data.normalization == 'imagenet' and config.num_epochs == 3
  assert lines[0] == 'model of cifar10_small, image size 32'


def test_a_smoke_test_is_not_adapted_and_digits_are(own):
  config = recipe_files.load('folder:smoke', [f'--config.data.name={own}'])
  assert config.num_epochs == 1 and config.data.name == str(own)
  config, lines = _adapted('digits', '--config.init_from=digits_small')
  assert config.model.widths == (16, 32, 48, 64) and len(lines) == 3


def test_images_as_stored_and_what_is_out_of_range(own):
  config, lines = _adapted(own, '--config.data.image_size=0')
  assert lines[0] == 'images as stored, for a median shorter side of 48 pixels'
  assert config.data.image_size == 0 and config.augment.crop_padding == 6
  with pytest.raises(UserError, match=r'config\.batch_size is -1: must be'):
    _adapted(own, '--config.batch_size=-1')


def test_the_stem_fits_the_size_of_images_as_stored(tmp_path):
  """80 pixels would be rounded to 64, for which the stem has a stride of 2."""
  for name in ('ant', 'bee'):
    _write(tmp_path / 'own' / name, 20, size=(80, 80))
  config, _ = _adapted(tmp_path / 'own', '--config.data.image_size=0')
  assert config.model.stem_strides == (2, 1, 2, 1)
  assert config.augment.crop_padding == 10


def test_what_an_override_replaces_is_not_said(own, tmp_path):
  tuned = '--config.init_from=cifar10_small'
  chosen = '--config.data.normalization=imagenet'
  _, lines = _adapted(own, tuned, chosen)
  assert lines[0] == 'model of cifar10_small, image size 32'
  for name in ('ant', 'bee'):
    _write(tmp_path / 'wide' / name, 20, size=(80, 60))
  config, lines = _adapted(tmp_path / 'wide', '--config.data.eval_crop=0')
  assert config.data.train_crop == 'random_resized'
  assert config.data.eval_crop == 0 and 'central' not in lines[0]


def test_random_crops_can_be_asked_for(own):
  config, _ = _adapted(own, '--config.data.train_crop=random_resized')
  assert config.data.crop_scale == (0.35, 1.0) and config.data.eval_crop == 1
  assert config.data.storage == 'decode' and config.augment.crop_padding == 0


def test_a_folder_beside_weights_need_not_be_theirs(own, tmp_path, monkeypatch):
  """A `config.json` of another library says nothing of a checkpoint."""
  card = load.read_card('cifar10_small')
  weights = tmp_path / 'weights.pth'
  weights.touch()
  (tmp_path / 'config.json').write_text('{"architectures": ["Other"]}')
  found = mock.Mock()
  found.match.is_whole, found.match.unexpected, found.card = True, (), card
  monkeypatch.setattr(load.rmt_checkpoint, 'read', lambda path: found)
  monkeypatch.setattr(load, '_checked', lambda *_: mock.Mock(card=card))
  _, lines = _adapted(own, f'--config.init_from={weights}')
  assert lines[0] == f'model and normalisation of {weights}, image size 32'


def test_cifar10_is_prepared(monkeypatch):
  def prepare(name, data_dir):
    raise UserError(f'{name} cannot be downloaded')

  monkeypatch.setattr(cifar10, 'prepare_if_missing', prepare)
  with pytest.raises(UserError, match='cifar10 cannot be downloaded'):
    _adapted('cifar10')


def test_overrides_precede_and_the_rest_fits_them(own):
  config, lines = _adapted(
      own,
      '--config.num_epochs=10',
      '--config.batch_size=32',
      '--config.data.image_size=96',
      '--config.data.train_split=train[:50%]',
  )
  assert (config.num_epochs, config.batch_size) == (10, 32)
  assert config.optimizer.warmup_epochs == 0.5
  assert config.optimizer.learning_rate == 1.5e-3
  assert config.data.image_size == 96
  assert lines[0].startswith('image size 96, for a median')
  assert lines[1].startswith('10 epochs of 32 images in batches of 32, with w')
  # As the recipe has it before it is adapted.
  config, lines = _adapted(own, '--config.optimizer.learning_rate=3e-3')
  assert config.optimizer.learning_rate == 3e-3
  assert lines[2] == 'learning rate 0.003'
  # The recipe, with which changes are compared, has no overrides.
  name = f'--config.data.name={own}'
  rate = '--config.optimizer.learning_rate=4e-3'
  recipe, config, _ = recipe_files.adapted('folder', [name, rate])
  assert recipe.optimizer.learning_rate == 3e-3
  assert config.optimizer.learning_rate == 4e-3
  assert recipe.num_epochs == config.num_epochs
  # A field that is only fitted above 64 pixels.
  strides = '--config.model.stem_strides=(2, 1, 2, 1)'
  config, _ = _adapted(own, '--config.data.image_size=128', strides)
  assert config.model.stem_strides == (2, 1, 2, 1)
  config, lines = _adapted(own, '--config.optimizer.warmup_epochs=7')
  assert 'with warm-up over the first 7' in lines[1]
  # 2,000 steps of 16 are 500 epochs of 64.
  steps = ['--config.num_steps=2000']
  config, lines = _adapted(own, *steps)
  assert (config.num_epochs, config.num_steps) == (0, 2000)
  assert config.optimizer.warmup_epochs == 25
  assert config.eval_every_epochs == 10
  given = _adapted(own, *steps, '--config.optimizer.warmup_steps=9')[
      0
  ].optimizer
  assert (given.warmup_steps, given.warmup_epochs) == (9, 0.0)
  assert lines[1].startswith('500 epochs of 64 images in batches of 16, with ')
  config, _ = _adapted(own, '--config.data.train_split=train[:50%]')
  assert config.data.train_split == 'train[:50%]'


def test_a_prepared_data_set(tmp_path):
  parts = {
      split: folder_data.examples(count, seed, (70, 64))
      for seed, (split, count) in enumerate({'train': 9, 'val': 5}.items())
  }
  folder_data.write(tmp_path, parts)
  config, lines = _adapted('own', f'--config.data.dir={tmp_path}')
  assert config.data.image_size == 64 and config.eval_batch_size == 5
  assert config.data.train_crop == 'random_resized'
  assert 'epochs of 9 images in batches of 16' in lines[1]


def test_a_run_goes_on_where_its_folders_have_moved(own, tmp_path):
  quiet = Terminal(io.StringIO())

  def begin(folder):
    config, _ = _adapted(folder)
    with run_lib.open_run(config, tmp_path / 'run', quiet):
      pass

  begin(own)
  (tmp_path / 'there').mkdir()
  there = own.rename(tmp_path / 'there' / 'own')
  begin(there)
  first, second = sorted((there / 'ant').iterdir())[:2]
  first.write_bytes(second.read_bytes())
  with pytest.raises(
      UserError, match=r'not the data .* content of train differs'
  ):
    begin(there)


@pytest.fixture(name='trained')
def _trained(monkeypatch):
  """Returns the calls of a train loop that does nothing."""
  calls = []

  def train(config, folder):
    calls.append((config, folder))
    return {'steps': 1, 'total_steps': 1, 'last': {}}

  monkeypatch.setattr(train_loop, 'train', train)
  return calls


def test_the_command_says_what_it_chose(own, trained, capsys, monkeypatch):
  base = ['train', '--config=folder', '--config.data.name=own']
  assert main.main(base) == 0
  said = capsys.readouterr().out
  assert 'image size 64, for a median shorter side of 48 pixels\n' in said
  assert main.main([*base, '--workdir=auto', '--config.seed=3']) == 0
  tuned = '--config.init_from=cifar10_small'
  assert main.main([*base, tuned, '--workdir=auto']) == 0
  monkeypatch.chdir(own / 'bee')
  assert main.main([*base[:2], '--config.data.name=..']) == 0
  folders = [str(folder) for _, folder in trained]
  assert folders == [
      'runs/folder_own',
      'runs/folder_own-seed=3',
      'runs/folder_own-init_from=cifar10_small',
      'runs/folder_own',
  ]


def test_a_run_has_the_normalisation_of_the_weights(own, tmp_path):
  config, _ = _adapted(own, '--config.init_from=digits_small')
  quiet = Terminal(io.StringIO())
  with run_lib.open_run(config, tmp_path / 'run', quiet) as run:
    info = run.data.info
  assert (info.mean, info.std) == (digits.MEAN, digits.STD)
  record = json.loads((tmp_path / 'run' / 'data.json').read_text())
  assert record['mean'] == list(digits.MEAN)


def test_a_run_among_the_classes_is_refused(own, monkeypatch):
  monkeypatch.chdir(own)
  config, _ = _adapted('.')
  said = r'the run folder runs/own is in the folder of the data.*--workdir'
  with pytest.raises(UserError, match=said):
    train_loop.train(config, pathlib.Path('runs/own'))
  assert not (own / 'runs').exists()
  (own / 'train').mkdir()
  for name in ('ant', 'bee'):
    (own / name).rename(own / 'train' / name)
  data_lib.check_apart(config, own / 'runs')
  with pytest.raises(UserError, match='where it would be a class'):
    data_lib.check_apart(config, own / 'train' / 'runs')


def test_crops_that_may_be_black_are_refused(own, tmp_path):
  config, _ = _adapted(own, '--config.data.image_size=16')
  for padding in (16, 15):
    config.augment.crop_padding = padding
    quiet = Terminal(io.StringIO())
    said = 'crop_padding is 16: some crops of images of 16 x 16 pixels would be'
    fails = pytest.raises(UserError, match=said)
    with fails if padding == 16 else contextlib.nullcontext():
      with run_lib.open_run(config, tmp_path / str(padding), quiet):
        pass


def test_overlapping_splits_are_a_line(tmp_path):
  """One image of val is in train, too, under another name."""
  for seed, part in enumerate(('train/a', 'train/b', 'val/a', 'val/b')):
    _write(tmp_path / part, 3, (4, 4), seed)
  there = (tmp_path / 'train' / 'b' / '001.png').read_bytes()
  for name in ('copy', 'again'):
    (tmp_path / 'val' / 'a' / f'{name}.png').write_bytes(there)
  splits = {
      name: datasets.open_source(str(tmp_path), name)
      for name in ('train', 'val')
  }
  (line,) = checks.overlaps(splits)
  assert line.startswith('warning: 2 images of val are also in train, such as ')
  (tmp_path / 'val' / 'a' / 'again.png').write_bytes(there + b'x')
  (line,) = checks.overlaps(splits)
  name = tmp_path / 'val' / 'a' / 'copy.png'
  assert line == f'warning: 1 image of val is also in train, such as {name}'
  (tmp_path / 'val' / 'a' / 'copy.png').write_bytes(there + b'x')
  assert not list(checks.overlaps(splits))


def test_many_images_are_compared_by_their_sizes_first(tmp_path, monkeypatch):
  """Only files of a size that another split has, too, are read."""
  sizes = {'train/a': (1, 2, 3), 'train/b': (4, 5, 2), 'val/a': (2, 6, 7)}
  for part, each in {**sizes, 'val/b': (8, 9)}.items():
    (tmp_path / part).mkdir(parents=True)
    for number, size in enumerate(each):
      path = tmp_path / part / f'{number}.png'
      path.write_bytes(part[0].encode() * size)
  splits = {
      name: datasets.open_source(str(tmp_path), name)
      for name in ('train', 'val')
  }
  monkeypatch.setattr(checks, '_COMPARED', 3)  # those of two bytes
  assert not list(checks.overlaps(splits))
  (tmp_path / 'val' / 'a' / '0.png').write_bytes(b'tt')
  (line,) = checks.overlaps(splits)
  assert line.startswith('warning: 1 image of val is also in train, such as')
  monkeypatch.setattr(checks, '_COMPARED', 2)
  (line,) = checks.overlaps(splits)
  assert line == (
      'the splits were not searched for shared images: 3 files have a size '
      'that occurs in another split, too many to read now; '
      f'`gswinrmt prepare folder {tmp_path}` compares them'
  )


def test_damaged_images_are_named_with_what_to_do(own, capsys):
  """All by `prepare folder`; the first that is read by training."""
  for name in ('ant/001.png', 'bee/002.png'):
    (own / name).write_bytes((own / name).read_bytes()[:99])
  assert main.main(['prepare', 'folder', str(own)]) == 2
  said = capsys.readouterr()
  assert '  ant/001.png: is damaged' in said.out
  assert '  bee/002.png: is damaged' in said.out
  assert '2 of the images of ' in said.err and said.err.count('\n') == 1
  source = datasets.open_source(str(own), 'train+val+test')
  with pytest.raises(UserError, match=r'repair or remove it \(`gswinrmt prep'):
    _ = [source[row] for row in range(80)]


def test_a_class_without_images_in_a_split_is_warned_of(own):
  for split, names in {'train': ('ant', 'bee'), 'val': ('bee',)}.items():
    for name in names:
      _write(own / 'divided' / split / name, 3, seed=len(split + name))
  (own / 'divided/val/ant').mkdir()
  lines = datasets.describe(str(own / 'divided'))
  assert '  warning: val has no image of ant' in lines
