"""Tests which part may import which, and what importing the package loads."""

import ast
import pathlib
import subprocess
import sys

import pytest

import gswinrmt_jax

ROOT = pathlib.Path(gswinrmt_jax.__file__).parent

OPEN = {'allocator', 'errors', 'files', 'terminal'}  # any part may import these
# Maps each part to the parts it may import.
MAY_IMPORT = {
    'ops': set(),
    'models': {'ops'},
    'augment': {'ops'},
    'data': set(),
    'distributed': set(),
    'checkpoints': {'distributed'},
    'runs': {'augment', 'checkpoints', 'data', 'recipes'},
    'weights': {
        'recipes',
        'checkpoints',
        'data',
        'distributed',
        'models',
        'ops',
        'runs',
    },
    'evals': {'augment', 'data', 'distributed', 'ops', 'runs', 'weights'},
    'train': {
        'recipes',
        'augment',
        'checkpoints',
        'data',
        'distributed',
        'evals',
        'models',
        'ops',
        'runs',
        'weights',
    },
    'recipes': {'models', 'ops'},
    'deploy': {
        'ops',
        'augment',
        'checkpoints',
        'data',
        'distributed',
        'evals',
        'interpret',
        'models',
        'runs',
        'weights',
    },
    'interpret': {'augment', 'data', 'evals', 'models', 'ops', 'weights'},
    'commands': {
        'deploy',
        'distributed',
        'evals',
        'interpret',
        'runs',
        'train',
        'weights',
        'data',
        'recipes',
        'models',
    },
}
OUTSIDE = {
    'ops': {'jax', 'jaxtyping', 'numpy'},
    'models': {'jax', 'jaxtyping', 'numpy', 'flax'},
    'interpret': {'jax', 'jaxtyping', 'numpy', 'flax', 'matplotlib'},
    'augment': {'jax', 'jaxtyping', 'numpy', 'PIL'},
    'recipes': {'ml_collections'},
    'data': {
        'absl',  # Grain's flags
        'numpy',
        'grain',
        'tensorflow_datasets',
        'PIL',
        'matplotlib',  # its font
        'tqdm',
        'requests',
        'yaml',
    },
}
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
  assert parts - {'__init__', '__main__', *OPEN} == MAY_IMPORT.keys()


@pytest.mark.parametrize('part', sorted(MAY_IMPORT))
def test_imports_point_one_way(part):
  allowed = MAY_IMPORT[part] | {part, *OPEN}
  for path in _files(part):
    ours = {
        n.split('.')[1] for n in _imports(path) if n.startswith('gswinrmt_jax.')
    }
    assert ours <= allowed, f'{path.relative_to(ROOT)} imports {ours - allowed}'


@pytest.mark.parametrize('part', sorted(OUTSIDE))
def test_libraries_of_the_inner_parts(part):
  for path in _files(part):
    outside = {
        name.split('.')[0]
        for name in _imports(path)
        if name.split('.')[0] not in sys.stdlib_module_names
    }
    extra = outside - OUTSIDE[part] - {'gswinrmt_jax'}
    assert not extra, f'{path.relative_to(ROOT)} imports {extra}'


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


def test_the_package_imports_no_script():
  scripts = (
      path
      for folder in ('experiments', 'benchmarks')
      for path in (ROOT.parent / folder).glob('*.py')
  )
  _check_none(ROOT.rglob('*.py'), {path.stem for path in scripts})


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


def test_the_package_has_what_it_promises_and_nothing_else():
  assert all(callable(getattr(gswinrmt_jax, n)) for n in gswinrmt_jax.__all__)
  assert {*gswinrmt_jax.__all__, '__version__'} <= {*dir(gswinrmt_jax)}
  with pytest.raises(AttributeError, match='make_model'):
    gswinrmt_jax.make_model  # noqa: B018
