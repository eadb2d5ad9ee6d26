"""Tests which part may import which, and what importing the package loads."""

import ast
import pathlib
import subprocess
import sys

import pytest

import gswinrmt_jax

ROOT = pathlib.Path(gswinrmt_jax.__file__).parent

OPEN = {'allocator', 'errors', 'files', 'terminal'}  # any part may import these
# A part may import those that precede it.
ORDER = (
    'data ops models augment recipes distributed checkpoints runs weights '
    'evals interpret deploy train commands'
).split()
FORBIDDEN = {'tensorflow', 'torch', 'einops', 'clu'}


def _files(part):
  path = ROOT / part
  return (
      sorted(path.rglob('*.py')) if path.is_dir() else [path.with_suffix('.py')]
  )


def _imports(path):
  """Yields the full dotted names of all imports, nested ones included."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ImportFrom):
      assert not node.level, f'{path}: relative import'
      for alias in node.names:
        yield f'{node.module}.{alias.name}'
    elif isinstance(node, ast.Import):
      for alias in node.names:
        yield alias.name


def test_every_part_is_listed():
  parts = {
      p.stem
      for p in ROOT.iterdir()
      if p.suffix == '.py' or (p / '__init__.py').exists()
  }
  assert parts - {'__init__', '__main__', *OPEN} == {*ORDER}


@pytest.mark.parametrize('part', ORDER)
def test_imports_point_one_way(part):
  allowed = {*ORDER[: ORDER.index(part) + 1], *OPEN}
  for path in _files(part):
    ours = {
        n.split('.')[1] for n in _imports(path) if n.startswith('gswinrmt_jax.')
    }
    assert ours <= allowed, f'{path.relative_to(ROOT)} imports {ours - allowed}'


def _check_none(paths, forbidden):
  for path in paths:
    found = {name.split('.')[0] for name in _imports(path)} & forbidden
    assert not found, f'{path.relative_to(ROOT.parent)} imports {found}'


def test_no_file_imports_a_forbidden_library():
  folders = 'gswinrmt_jax configs examples experiments benchmarks'.split()
  for folder in folders:
    paths = (ROOT.parent / folder).rglob('*.py')
    # PyTorch, in files named by it, is what benchmarks compare with.
    ours = (path for path in paths if not path.name.startswith('torch_'))
    _check_none(ours, FORBIDDEN)


def test_data_and_recipes_import_no_jax():
  paths = [*_files('data'), *_files('recipes')]
  _check_none(paths, {'jax', 'flax', 'optax', 'orbax'})


def test_importing_the_package_loads_no_heavy_library():
  heavy = 'jax flax orbax optax tensorflow_datasets grain matplotlib'.split()
  program = (
      'import sys, gswinrmt_jax, gswinrmt_jax.commands.main; '
      f'print([name for name in {heavy} if name in sys.modules])'
  )
  result = subprocess.run(
      [sys.executable, '-c', program],
      capture_output=True,
      text=True,
      check=True,
      cwd=ROOT.parent,
  )
  assert result.stdout.strip() == '[]'
