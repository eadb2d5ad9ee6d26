"""Tests `gswinrmt prepare`, from the command line to the data set."""

import os

import cifar10_archives
import image_files
from image_files import prepare
import pytest

from gswinrmt_jax.data import prepared
from gswinrmt_jax.data.prepare import cifar10, imagenet
from gswinrmt_jax.errors import UserError


def test_digits_need_nothing(capsys):
  prepare('digits')
  assert capsys.readouterr().out == (
      'digits: ships with this package, nothing to prepare\n'
  )


def test_cifar10_from_an_archive_into_a_directory(
    monkeypatch, tmp_path, capsys
):
  monkeypatch.setattr(cifar10, 'IMAGES_PER_CLASS', cifar10_archives.PER_CLASS)
  archive = cifar10_archives.python_archive(tmp_path)
  root = tmp_path / 'data'
  prepare('cifar10', f'--archive={archive}', f'--dir={root}')
  assert f'cifar10: prepared {root}/cifar10/' in capsys.readouterr().out
  assert prepared.open_newest('cifar10', str(root))
  monkeypatch.setenv('TFDS_DATA_DIR', str(root))
  prepare('cifar10')
  assert 'already prepared' in capsys.readouterr().out


def test_unknown_data_set():
  with pytest.raises(UserError, match='did you mean cifar10'):
    prepare('cifar')
  with pytest.raises(
      UserError, match='known: folder, segmentation, detection, imagenet'
  ):
    prepare('xyz')


def test_class_folders_are_only_reported(tmp_path, capsys):
  names = image_files.names('cat', 'dog', count=10)
  image_files.write(tmp_path / 'my pets', names)
  prepare('folder', str(tmp_path / 'my pets'), '--jobs=1')
  out = capsys.readouterr().out
  assert out.startswith('my pets: train 16, val 2, test 2 images of 2 classes')
  assert '(cat, dog)' in out and 'held out at random (seed 0)' in out
  assert f"--config.data.name='{tmp_path}/my pets'" in out
  assert os.listdir(tmp_path) == ['my pets']
  (tmp_path / 'my pets/cat/3.jpg').write_bytes(b'x')
  with pytest.raises(UserError, match=r'1 of the .* the first cat/3\.jpg'):
    prepare('folder', str(tmp_path / 'my pets'), '--jobs=1')
  assert 'left out: 1, the first cat/3.jpg (' in capsys.readouterr().out


def test_folders_without_an_image_are_refused(tmp_path):
  image_files.write(tmp_path, ['cat/1.heic', 'dog/2.txt'])
  with pytest.raises(UserError, match=r'no image; skipped: .*\.heic 1'):
    prepare('folder', str(tmp_path), '--jobs=1')


def test_class_folders_for_evaluation_alone(tmp_path, capsys):
  image_files.write(tmp_path, image_files.names('test/cat', 'test/dog'))
  prepare('folder', str(tmp_path), '--jobs=1')
  out = capsys.readouterr().out
  assert ': test 6 images of 2 classes (cat, dog)' in out
  assert f'No data to train with: {tmp_path} has test/ but no train/' in out
  assert f'prepare: gswinrmt evaluate WEIGHTS --data {tmp_path}\n' in out


def test_mini_imagenet_from_a_list_of_classes(tmp_path, monkeypatch):
  monkeypatch.setattr(imagenet, 'MINI_CLASSES', 2)
  folders = ('n01440764', 'n01443537', 'n01484850')
  image_files.write(tmp_path / 'in', image_files.names(*folders, count=12))
  (tmp_path / 'list').write_text('n01484850\nn01443537\n')
  prepare(
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
        ('imagenet birds --images x', r"imagenet takes no NAME \('birds'\)"),
        ('folder birds --images x', 'takes no --images; a folder .* in place'),
        ('folder', 'needs a folder; a folder with a folder of images'),
        ('folder birds --jobs 0', "--jobs is '0': must be"),
        ('folder /no/such', '/no/such: no such folder'),
        ('segmentation cifar10 --images x', 'the name cifar10 is taken'),
        ('segmentation x --images .', 'segmentation needs --labels DIR'),
        ('segmentation x --labels .', 'segmentation needs --images DIR'),
        ('segmentation --images .', 'prepare segmentation NAME --images'),
        ('segmentation x --images . --labels /no', '--labels /no: no such'),
        ('segmentation x --images . --labels . --void 256', '--void 256: valu'),
    ],
)
def test_options_that_do_not_belong(arguments, said, monkeypatch, tmp_path):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  with pytest.raises(UserError, match=said):
    prepare(*arguments.split())
