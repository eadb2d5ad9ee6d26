"""Tests that the documentation agrees with the code."""

import contextlib
import dataclasses
import re
import runpy

import ablations
import pages
import parameter_counts
import pytest
import run

import gswinrmt_jax
from gswinrmt_jax import ops, recipes
from gswinrmt_jax.commands import main, recipe_files
from gswinrmt_jax.models import named
from gswinrmt_jax.models.architecture import Architecture

ROOT = pages.ROOT
PAGES = [
    'README.md',
    'CONTRIBUTING.md',
    'CHANGELOG.md',
    'examples/README.md',
    *sorted(f'docs/{path.name}' for path in (ROOT / 'docs').glob('*.md')),
]


def _fields(cell):
  """Returns the keyword arguments that a cell names in backticks."""
  return eval(f'dict({", ".join(re.findall(r"`([^`]*)`", cell))})')


def test_help_names_every_attention_form():
  fields = {each.name: each for each in dataclasses.fields(Architecture)}
  for name in ops.FORMS | ops.FULL_FORMS:
    assert f"'{name}'" in fields['score_fn'].metadata['help']


def test_data_lists_every_field_of_reading():
  rows = pages.rows(pages.read('data'), '| field | default |')
  fields = re.findall(r'`(\w+)`', ' '.join(row[0] for row in rows))
  assert sorted(fields) == sorted(recipes.cifar10('rmt_compact').data)


@pytest.mark.parametrize('page', PAGES)
def test_fields_of_a_recipe_exist(page):
  config = recipes.cifar10('rmt_compact')
  text = (ROOT / page).read_text()
  for name in re.findall(r'--config\.([\w.]+)=', text):
    group, _, field = name.rpartition('.')
    fields = config.get(group, ()) if group else config
    assert field == 'FIELD' or field in fields, f'{page}: {name}'


def _bash(page):
  """Yields the words of each command in a page's bash blocks."""
  text = (ROOT / page).read_text()
  for block in re.findall(r'```bash\n(.*?)```', text, re.DOTALL):
    for line in block.replace('\\\n', ' ').splitlines():
      for command in line.split('#')[0].split('&&'):
        yield command.replace('python train.py', 'gswinrmt train').split()


def _commands(page):
  """Yields the words of each `gswinrmt` command in a page's bash blocks."""
  for words in _bash(page):
    if 'gswinrmt' in words:
      yield words[words.index('gswinrmt') + 1 :]


@pytest.mark.parametrize('page', PAGES)
def test_commands_and_their_options_exist(page, capsys):
  helps = {}
  for name, *words in _commands(page):
    if name not in helps:
      with contextlib.suppress(SystemExit):
        main.main([name, '--help'])
      helps[name] = capsys.readouterr().out
    for word in words:
      option = word.partition('=')[0].strip("'")
      if option.startswith('--') and not option.startswith('--config.'):
        assert re.search(rf'{option}\b', helps[name]), f'{page}: {name} {word}'


@pytest.mark.parametrize('page', PAGES)
def test_scripts_and_their_options_exist(page):
  for words in _bash(page):
    paths = [word for word in words if re.match('(exp|bench).*/.*py$', word)]
    for path in paths:
      source = (ROOT / path).read_text()
      for word in words[words.index(path) :]:
        option = word.partition('=')[0].strip("'")
        if option.startswith('--') and not option.startswith('--config.'):
          assert f"'{option}'" in source, f'{page}: {path} {word}'


def test_models_lists_ablations_that_can_be_built():
  rows = pages.rows(pages.read('models'), '| row | model | fields |')
  assert len(rows) == 15
  for _, name, cell in rows:
    name, fields = name.strip('`'), _fields(cell)
    arch = gswinrmt_jax.create_model(name, num_classes=10, **fields).arch
    named = vars(gswinrmt_jax.create_model(name, num_classes=10).arch)
    # Each field of a row changes something.
    changed = {field for field in named if getattr(arch, field) != named[field]}
    assert changed == fields.keys(), (name, cell)


def test_experiments_lists_every_switch():
  for base, table in ablations.SWITCHES.items():
    rows = pages.rows(pages.read('experiments'), f'| `{base}` | changes |')
    found = {
        name.strip('`'): (_fields(cell), against.strip('`') or 'base')
        for name, cell, against in rows
    }
    expected = {
        name: (dict(switch.fields), switch.against)
        for name, switch in table.items()
        if name != 'base'
    }
    assert found == expected


def test_experiments_lists_every_set_of_runs():
  found = re.findall(
      r'^\| `([\w-]+)` \| (\d+) \|', pages.read('experiments'), re.MULTILINE
  )
  assert {name: int(runs) for name, runs in found} == {
      name: len(entries) for name, entries in run.SETS.items()
  }


def _anchors(path):
  """Returns the anchors that GitHub gives to a page's headings."""
  headings = re.findall(r'^#+ (.*)$', path.read_text(), re.MULTILINE)
  words = [re.sub(r'[^\w\- ]', '', heading.lower()) for heading in headings]
  return {word.replace(' ', '-') for word in words}


@pytest.mark.parametrize('page', PAGES)
def test_links_and_paths_lead_somewhere(page):
  path = ROOT / page
  text = path.read_text()
  for target, anchor in re.findall(r'\]\((?!http)([^)#]*)#?([^)]*)\)', text):
    linked = path.parent / target if target else path
    assert linked.exists(), f'{page}: {target}'
    assert not anchor or anchor in _anchors(linked), f'{page}: #{anchor}'
  folders = 'configs|docs|results|tests|experiments|benchmarks|gswinrmt_jax'
  for place in re.findall(rf'`((?:{folders})/[\w./]+)`', text):
    if 'NAME' not in place:  # a placeholder
      assert (ROOT / place).exists(), f'{page}: {place}'


def test_models_has_every_parameter_count():
  for name, (_, count) in parameter_counts.COUNTS.items():
    assert re.search(rf'`{name}`.*{count:,}', pages.read('models')), name


def test_models_has_heads_ratios_and_stochastic_depth():
  rows = pages.rows(pages.read('models'), '| name | heads | FFN ratio |')
  listed = {}
  for names, heads, ratios, rates in rows:
    names, rates = re.findall('`(.*?)`', names), rates.split(', ')
    for name, rate in zip(
        names, rates * (len(names) // len(rates)), strict=True
    ):
      listed[name] = heads, ratios, rate
  assert listed.keys() == named.MODELS.keys()
  for name, (heads, ratios, rate) in listed.items():
    arch = named.MODELS[name]
    assert heads == ' '.join(map(str, arch.num_heads))
    ratios = tuple(map(float, ratios.split()))
    assert ratios * (arch.stages // len(ratios)) == arch.mlp_ratios
    assert float(rate) == arch.drop_path_rate


@pytest.mark.parametrize(
    ('script', 'picture', 'arguments'),
    [
        ('architecture', 'architecture', ()),
        ('cifar10_curves', 'cifar10_models', ('cifar10_models',)),
        ('cifar10_curves', 'cifar10_readings', ('cifar10_readings',)),
    ],
)
def test_drawings_are_those_of_their_scripts(script, picture, arguments):
  images = ROOT / 'docs' / 'images'
  draw = runpy.run_path(str(images / f'{script}.py'))['draw']
  assert draw(*arguments) == (images / f'{picture}.svg').read_text()


def test_a_recipe_of_ones_own(tmp_path):
  page = pages.read('training').partition('## A recipe of your own')[2]
  code = re.search(r'```python\n(.*?)```', page, re.DOTALL)[1]
  path = tmp_path / 'mine.py'
  path.write_text(code)
  config = recipe_files.load(str(path), [])
  assert (config.num_epochs, config.model.window_size) == (100, 4)
  assert recipe_files.load(f'{path}:smoke', []).num_epochs == 1


def test_the_version_is_the_same_everywhere():
  version = gswinrmt_jax.__version__
  assert f'\nversion: {version}\n' in (ROOT / 'CITATION.cff').read_text()
  assert f'version = {{{version}}},' in (ROOT / 'README.md').read_text()
  newest = re.search(
      r'^## \[(.*?)\]', (ROOT / 'CHANGELOG.md').read_text(), re.M
  )
  assert newest[1] == version


def test_the_command_line_has_every_command():
  headings = re.findall(r'^## ([\w-]+)$', pages.read('cli'), re.MULTILINE)
  printed = re.findall(r'{command-help} ([\w-]+)', pages.read('cli'))
  assert headings == printed
  assert sorted(headings) == sorted(main._COMMANDS)


def test_configuration_has_every_section():
  sections = {path.rpartition('.')[0] for path in recipes.FIELDS}
  printed = re.findall(r'{config-fields} ?(\w*)', pages.read('config'))
  assert sorted(printed) == sorted(sections)


def test_reliability_names_tests_that_exist():
  text = pages.read('reliability')
  named = re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', text)
  assert len(named) == len(pages.rows(text, '| test |')) > 20
  for file, test in named:
    assert f'\ndef {test}(' in (ROOT / file).read_text(), test
