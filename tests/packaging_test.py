"""Tests that wheel and sdist are complete, and that the wheel runs."""

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_NEEDED = 'building needs hatchling (extra: test)'
# Files of the package other than Python.
_DATA = {
    'gswinrmt_jax/py.typed',
    'gswinrmt_jax/data/digits.npz',
    'gswinrmt_jax/data/digits.LICENSE.txt',
    'gswinrmt_jax/data/imagenet_classes.txt',
    *(
        path.relative_to(_ROOT).as_posix()
        for path in (_ROOT / 'gswinrmt_jax' / 'pretrained').glob('*/*')
    ),
}


def _build(target, folder):
  """Builds a distribution in this environment; returns its path."""
  pytest.importorskip('hatchling', reason=_NEEDED)
  program = (
      'import sys; from hatchling import build; '
      f'print(build.build_{target}(sys.argv[1]))'
  )
  done = subprocess.run(
      [sys.executable, '-c', program, str(folder)],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=True,
  )
  return folder / done.stdout.split()[-1]


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  return _build('wheel', tmp_path_factory.mktemp('wheel'))


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
  """Returns a folder with the package as pip would install it."""
  folder = tmp_path_factory.mktemp('site')
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder)
  return folder


def _sources(*folders):
  return {
      path.relative_to(_ROOT).as_posix()
      for folder in folders
      for path in (_ROOT / folder).rglob('*.py')
  }


def test_the_wheel_has_package_recipes_and_licences(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    (scripts,) = (name for name in names if name.endswith('entry_points.txt'))
    assert 'gswinrmt = gswinrmt_jax.commands.main:console' in (
        archive.read(scripts).decode()
    )
  about = {name for name in names if '.dist-info/' in name}
  recipes = {f'gswinrmt_jax/{name}' for name in _sources('configs')}
  assert names - about == _sources('gswinrmt_jax') | recipes | _DATA
  assert {name.partition('/')[2] for name in about} == {
      'METADATA',
      'RECORD',
      'WHEEL',
      'entry_points.txt',
      'licenses/LICENSE',
      'licenses/gswinrmt_jax/data/digits.LICENSE.txt',
  }


def test_the_sdist_builds_tests_and_tells(tmp_path):
  with tarfile.open(_build('sdist', tmp_path)) as archive:
    names = {name.partition('/')[2] for name in archive.getnames()}
  folders = 'gswinrmt_jax configs tests experiments benchmarks examples'.split()
  wanted = {
      'pyproject.toml',
      'README.md',
      'LICENSE',
      'CHANGELOG.md',
      'CITATION.cff',
      'CONTRIBUTING.md',
      'train.py',
      '.ci/run',
      '.readthedocs.yaml',
      'docs/data.md',
      'tests/fixtures/golden.npz',
      *_DATA,
      *_sources(*folders),
  }
  assert wanted <= names
  inside = (*folders, '.ci', 'docs', 'results')
  others = {name for name in names if name.partition('/')[0] not in inside}
  assert others - wanted == {'PKG-INFO', '.gitignore'}
  assert not [name for name in names if '__pycache__' in name]


def _run(installed, folder, *words):
  """Runs the installed package in a folder; returns its output."""
  done = subprocess.run(
      [sys.executable, *words],
      cwd=folder,
      env={**os.environ, 'PYTHONPATH': str(installed)},
      capture_output=True,
      text=True,
      timeout=300,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


_MAIN = ('-m', 'gswinrmt_jax.commands.main', 'train')


def test_it_is_imported_without_a_warning(installed, tmp_path):
  words = ('-W', 'error', '-c', 'import gswinrmt_jax as g; print(g.__file__)')
  assert _run(installed, tmp_path, *words).startswith(str(installed))


def test_a_recipe_is_found_by_its_name(installed, tmp_path):
  said = _run(installed, tmp_path, *_MAIN, '--config=cifar10_retention', '-h')
  assert re.search(r'^model.name +retention_compact ', said, re.M)
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cifar10_retention', 'digits_rmt'])
def test_it_trains_in_an_empty_folder(name, installed, tmp_path):
  said = _run(installed, tmp_path, *_MAIN, f'--config={name}:smoke')
  assert 'test accuracy' in said
  assert (tmp_path / 'runs' / f'{name}_smoke' / 'summary.json').exists()
