import argparse
import subprocess
import sys

import cifar10_test
import pytest

from gswinrmt_jax.commands import prepare
from gswinrmt_jax.data import cifar10, cifar10_archive
from gswinrmt_jax.errors import UserError


def run(*arguments):
  parser = argparse.ArgumentParser(prog='gswinrmt prepare')
  prepare.add_arguments(parser)
  return prepare.run(parser.parse_args(arguments))


def test_digits_need_nothing(capsys):
  assert run('digits') == 0
  assert capsys.readouterr().out == (
      'digits: ships with this package, nothing to prepare\n'
  )


def test_cifar10_from_an_archive_into_a_directory(
    monkeypatch, tmp_path, capsys
):
  monkeypatch.setattr(
      cifar10_archive, 'IMAGES_PER_CLASS', cifar10_test.PER_CLASS
  )
  archive = cifar10_test.python_archive(tmp_path)
  root = tmp_path / 'data'
  assert run('cifar10', '--archive', str(archive), '--dir', str(root)) == 0
  assert f'cifar10: prepared {root}/cifar10/' in capsys.readouterr().out
  assert cifar10.is_prepared(str(root))
  monkeypatch.setenv('TFDS_DATA_DIR', str(root))
  assert run('cifar10') == 0
  assert 'already prepared' in capsys.readouterr().out


def test_unknown_data_set():
  with pytest.raises(UserError, match='did you mean cifar10'):
    run('cifar')


def test_help_imports_nothing_heavy():
  code = (
      'import argparse, sys\n'
      'from gswinrmt_jax.commands import prepare\n'
      'parser = argparse.ArgumentParser()\n'
      'prepare.add_arguments(parser)\n'
      'text = parser.format_help()\n'
      'assert "--archive FILE" in text and "examples:" in text\n'
      'heavy = {"grain", "tensorflow_datasets", "matplotlib", "orbax"}\n'
      'print(sorted(heavy & set(sys.modules)))\n'
  )
  done = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout == '[]\n', done.stderr


def test_data_modules_import_nothing_heavy_by_themselves():
  code = (
      'import sys, gswinrmt_jax.data.pipeline\n'
      'heavy = {"grain", "tensorflow_datasets", "requests"}\n'
      'print(sorted(heavy & set(sys.modules)))\n'
  )
  done = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout == '[]\n', done.stderr
