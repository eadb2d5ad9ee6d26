"""Tests `gswinrmt prepare`, from the command line to the data set."""

import argparse
import io
import os
import subprocess
import sys

import cifar10_archives
import image_files
import PIL.Image
import pytest

from gswinrmt_jax.commands import prepare
from gswinrmt_jax.data import datasets, prepared
from gswinrmt_jax.data.prepare import cifar10, imagenet
from gswinrmt_jax.errors import UserError


def run(*arguments):
  parser = argparse.ArgumentParser(prog='gswinrmt prepare')
  prepare.add_arguments(parser)
  return prepare.run(parser.parse_args(arguments)) or 0


def test_digits_need_nothing(capsys):
  assert run('digits') == 0
  assert capsys.readouterr().out == (
      'digits: ships with this package, nothing to prepare\n'
  )


def test_cifar10_from_an_archive_into_a_directory(
    monkeypatch, tmp_path, capsys
):
  monkeypatch.setattr(cifar10, 'IMAGES_PER_CLASS', cifar10_archives.PER_CLASS)
  archive = cifar10_archives.python_archive(tmp_path)
  root = tmp_path / 'data'
  assert run('cifar10', '--archive', str(archive), '--dir', str(root)) == 0
  assert f'cifar10: prepared {root}/cifar10/' in capsys.readouterr().out
  assert prepared.open_newest('cifar10', str(root))
  monkeypatch.setenv('TFDS_DATA_DIR', str(root))
  assert run('cifar10') == 0
  assert 'already prepared' in capsys.readouterr().out


def test_unknown_data_set():
  with pytest.raises(UserError, match='did you mean cifar10'):
    run('cifar')
  with pytest.raises(
      UserError, match='known: folder, segmentation, detection, imagenet'
  ):
    run('xyz')
  with pytest.raises(UserError, match='read in place: train with --config'):
    run('xyz', '--images', 'in')


def test_class_folders_are_only_reported(tmp_path, capsys):
  names = image_files.names('cat', 'dog', count=10)
  image_files.write(tmp_path / 'my pets', names)
  assert run('folder', str(tmp_path / 'my pets'), '--jobs=1') == 0
  out = capsys.readouterr().out
  assert out.startswith('my pets: train 16, val 2, test 2 images of 2 classes')
  assert '(cat, dog)' in out and 'held out at random (seed 0)' in out
  assert f"--config.data.name='{tmp_path}/my pets'" in out
  assert os.listdir(tmp_path) == ['my pets']
  (tmp_path / 'my pets/cat/3.jpg').write_bytes(b'x')
  with pytest.raises(UserError, match=r'1 images of .* the first cat/3\.jpg'):
    run('folder', str(tmp_path / 'my pets'), '--jobs=1')
  assert 'left out as damaged: 1' in capsys.readouterr().out


@pytest.mark.parametrize('dataset', ['imagenet', 'mini_imagenet'])
def test_known_collections_are_asked_for(dataset, tmp_path):
  arguments = [dataset, '--images', str(tmp_path), '--dir', str(tmp_path)]
  with pytest.raises(UserError, match=r'ILSVRC2012_img_train|0 class folders'):
    run(*arguments)


def test_mini_imagenet_from_a_list_of_classes(tmp_path, monkeypatch):
  monkeypatch.setattr(imagenet, 'MINI_CLASSES', 2)
  folders = ('n01440764', 'n01443537', 'n01484850')
  image_files.write(tmp_path / 'in', image_files.names(*folders, count=12))
  (tmp_path / 'list').write_text('n01484850\nn01443537\n')
  run(
      'mini_imagenet',
      f'--images={tmp_path}/in',
      f'--dir={tmp_path}/out',
      f'--classes={tmp_path}/list',
      '--jobs=1',
      '--seed=3',
  )
  builder = prepared.open_newest('mini_imagenet', str(tmp_path / 'out'))
  names = builder.info.features['label'].names
  assert names == ['goldfish', 'great white shark']
  sizes = {k: v.num_examples for k, v in builder.info.splits.items()}
  assert sizes == {'train': 20, 'val': 2, 'test': 2}


@pytest.mark.parametrize(
    'arguments, said',
    [
        ('digits --archive x', 'digits takes no --archive'),
        ('cifar10 --images x', 'cifar10 takes no --images'),
        ('cifar10 --on-error skip', 'cifar10 takes no --on-error'),
        ('imagenet --images x --val 0', 'imagenet takes no --val'),
        ('imagenet birds --images x', r"imagenet takes no NAME \('birds'\)"),
        ('mini_imagenet --images x --test 0', 'takes no --test'),
        ('folder birds --images x', 'takes no --images; a folder .* in place'),
        ('folder birds --archive y', 'folder takes no --archive'),
        ('folder', 'needs a folder; a folder with a folder of images'),
        ('folder birds --jobs 0', "--jobs is '0': must be"),
        ('folder /no/such', '/no/such: no such directory'),
        ('segmentation cifar10 --images x', 'the name cifar10 is taken'),
    ],
)
def test_options_that_do_not_belong(arguments, said, tmp_path):
  with pytest.raises(UserError, match=said):
    run(*arguments.split(), '--dir', str(tmp_path))


def test_help_imports_nothing_heavy():
  code = (
      'import argparse, sys\n'
      'from gswinrmt_jax.commands import prepare\n'
      'parser = argparse.ArgumentParser()\n'
      'prepare.add_arguments(parser)\n'
      'text = parser.format_help()\n'
      'assert "--archive FILE" in text\n'
      'heavy = {"grain", "tensorflow_datasets", "matplotlib", "orbax"}\n'
      'print(sorted(heavy & set(sys.modules)))\n'
  )
  done = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout == '[]\n', done.stderr


def test_data_modules_import_nothing_heavy_by_themselves():
  code = (
      'import sys, gswinrmt_jax.data.batches\n'
      'heavy = {"grain", "tensorflow_datasets", "requests"}\n'
      'print(sorted(heavy & set(sys.modules)))\n'
  )
  done = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout == '[]\n', done.stderr


def _bad_pictures(root):
  """Writes unusual and damaged images; returns the damaged ones' names."""
  whole = image_files.encoded(1)
  damaged = {
      'empty.jpg': b'',
      'cut.jpg': whole[:-40],
      'cut.png': image_files.encoded(1, 'PNG')[:-30],
      'text.jpg': b'<html>404 Not Found</html>',
      'flipped.png': image_files.encoded(1, 'PNG')[:60] + b'\0' * 60,
      'vector.bmp': image_files.encoded(1, 'EPS'),
  }
  usable = {
      'cmyk.jpg': image_files.encoded(2, 'JPEG', 'CMYK'),
      'palette.png': image_files.encoded(3, 'PNG', 'P'),
      'a png.jpg': image_files.encoded(4, 'PNG'),
      'pixel.png': _of_size(1, 1),
      'strip.png': _of_size(900, 2),
  }
  image_files.write(root, image_files.names('猫', 'пёс', 'dog', count=12))
  for name, content in (damaged | usable).items():
    (root / 'dog' / name).write_bytes(content)
  (root / 'пёс' / 'copy of a cat.jpg').write_bytes(
      (root / '猫' / '0.jpg').read_bytes()
  )
  (root / 'dog' / 'nowhere.jpg').symlink_to('gone.jpg')
  return sorted([*damaged, 'nowhere.jpg'])


def _of_size(width, height):
  file = io.BytesIO()
  PIL.Image.new('RGB', (width, height), 'red').save(file, 'PNG')
  return file.getvalue()


def test_bad_pictures_are_reported_by_name(tmp_path, capsys):
  damaged = _bad_pictures(tmp_path / 'in')
  with pytest.raises(UserError, match=r'7 images of .* the first dog/'):
    run('folder', str(tmp_path / 'in'), '--jobs=1')
  out = capsys.readouterr().out
  for line in (
      'left out as damaged: 7',
      'smallest dog/pixel.png (1 x 1), largest dog/strip.png (900 x 2)',
      'converted to RGB, the first of each mode: ',
      'CMYK dog/cmyk.jpg',
      'P dog/palette.png',
      'with the suffix of another format: 1, the first dog/a png.jpg',
      'in several classes: 1 times, first ',
  ):
    assert line in out
  for name in damaged:
    (tmp_path / 'in/dog' / name).unlink()
  run('folder', str(tmp_path / 'in'), '--jobs=1')
  # Everything that is left can be trained on.
  name = str(tmp_path / 'in')
  assert datasets.info(name).class_names == ('dog', 'пёс', '猫')
  splits = datasets.own_splits(name)
  loaded = [
      datasets.load(name, split, image_size=(8, 8)) for split in splits.values()
  ]
  assert sum(map(len, loaded)) == 42
