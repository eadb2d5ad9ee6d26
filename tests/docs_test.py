"""The documents say what the code does."""

import pathlib
import re

import pytest

import gswinrmt_jax
from gswinrmt_jax import recipes
from gswinrmt_jax.experiments import sets, switches
from gswinrmt_jax.models import factory

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()


def test_the_table_of_fields_is_complete():
  text = (ROOT / 'docs' / 'models.md').read_text()
  table = text.partition('## Fields')[2].partition('\n\nImages')[0]
  fields = re.findall(r'^\| `(\w+)` \|', table, re.MULTILINE)
  assert fields == list(factory.FIELDS)


def test_the_fields_of_reading_are_complete():
  text = (ROOT / 'docs' / 'data.md').read_text()
  table = text.partition('| field | default |')[2].partition('\n\n')[0]
  cells = re.findall(r'^\| (`.*?) \|', table, re.MULTILINE)
  fields = re.findall(r'`(\w+)`', ' '.join(cells))
  assert sorted(fields) == sorted(recipes.cifar10('rmt_compact').data)


def test_the_fields_of_the_mesh_are_complete():
  text = (ROOT / 'docs' / 'scaling.md').read_text()
  table = text.partition('| field | default |')[2].partition('\n\n')[0]
  rows = re.findall(r'^\| `config\.([\w.]+)` \| (\d) \|', table, re.MULTILINE)
  config = recipes.cifar10('rmt_compact')
  assert {name for name, _ in rows if name.startswith('mesh.')} == {
      f'mesh.{name}' for name in config.mesh
  }
  for name, default in rows:
    section, _, field = name.rpartition('.')
    assert str((config[section] if section else config)[field]) == default


def test_the_rows_of_the_ablations_can_be_built():
  text = (ROOT / 'docs' / 'models.md').read_text()
  table = text.partition('| row | model | fields |')[2].partition('\n\n')[0]
  rows = re.findall(r'^\| .* \| `(\w+)` \| (.*) \|$', table, re.MULTILINE)
  assert len(rows) == 15
  for name, cell in rows:
    # The cell's own words, as a caller would write them.
    fields = eval(f'dict({", ".join(re.findall(r"`([^`]*)`", cell))})')
    arch = gswinrmt_jax.create_model(name, num_classes=10, **fields).arch
    named = vars(gswinrmt_jax.create_model(name, num_classes=10).arch)
    # Each field of a row changes something.
    changed = {field for field in named if getattr(arch, field) != named[field]}
    assert changed == fields.keys(), (name, cell)


def test_the_switches_of_the_ablations_are_complete():
  text = (ROOT / 'docs' / 'experiments.md').read_text()
  for base, table in switches.SWITCHES.items():
    rows = text.partition(f'| `{base}` | changes |')[2].partition('\n\n')[0]
    found = {}
    for name, cell, against in re.findall(
        r'^\| `(\w+)` \| (.*) \| (.*)\|$', rows, re.MULTILINE
    ):
      fields = eval(f'dict({", ".join(re.findall(r"`([^`]*)`", cell))})')
      found[name] = (fields, against.strip(' `') or 'base')
    expected = {
        name: (dict(switch.fields), switch.against)
        for name, switch in table.items()
        if name != switches.BASE
    }
    assert found == expected


def test_the_sets_of_runs_are_complete():
  text = (ROOT / 'docs' / 'experiments.md').read_text()
  found = re.findall(r'^\| `([\w-]+)` \| (\d+) \|', text, re.MULTILINE)
  assert {name: int(runs) for name, runs in found} == {
      name: len(entries) for name, entries in sets.SETS.items()
  }


def test_the_quickstart_runs(capsys):
  block = re.search(r'```python\n(.*?)```', README, re.DOTALL)[1]
  exec(compile(block, 'README.md', 'exec'), {})  # The README's own lines.
  assert capsys.readouterr().out.splitlines() == ['(2, 10)', '(2, 4, 4, 128)']


@pytest.mark.parametrize(
    'document',
    [
        'README.md',
        'CONTRIBUTING.md',
        'docs/experiments.md',
        'docs/imagenet.md',
        'docs/models.md',
        'docs/decisions.md',
        'docs/token_labels.md',
        'docs/data.md',
        'docs/performance.md',
        'docs/reliability.md',
        'docs/scaling.md',
        'docs/weights.md',
    ],
)
def test_links_and_paths_lead_somewhere(document):
  path = ROOT / document
  text = path.read_text()
  targets = re.findall(r'\]\((?!http)([^)#]+)', text)
  targets += re.findall(
      r'`((?:configs|docs|results|tests|gswinrmt_jax)/[\w./]+)`', text
  )
  for target in targets:
    if 'NAME' in target:  # stands for a name of the reader's
      continue
    found = (path.parent / target).exists() or (ROOT / target).exists()
    assert found, f'{document}: {target}'


def test_parameter_counts_in_the_readme_are_those_tested():
  import parameters_test

  for name, (_, count) in parameters_test.COUNTS.items():
    assert re.search(rf'`{name}`.*{count:,}', README), name


def test_the_tests_that_reliability_names_are_there():
  text = (ROOT / 'docs' / 'reliability.md').read_text()
  named = re.findall(r'`(tests/\w+\.py)::(\w+)`', text)
  rows = text.partition('| test |')[2].partition('\n\n')[0].splitlines()[2:]
  assert len(named) == len(rows) > 20
  for file, test in named:
    assert f'\ndef {test}(' in (ROOT / file).read_text(), test
