"""Tests that the documentation agrees with the code."""

import contextlib
import dataclasses
import json
import pathlib
import re
import runpy

import ablations
import numpy as np
import parameter_counts
import pytest
import run

import gswinrmt_jax
from gswinrmt_jax import ops, recipes
from gswinrmt_jax.commands import main, recipe_files
from gswinrmt_jax.models import named
from gswinrmt_jax.models.architecture import Architecture

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [
    'README.md',
    'CONTRIBUTING.md',
    'CHANGELOG.md',
    'examples/README.md',
    *sorted(f'docs/{path.name}' for path in (ROOT / 'docs').glob('*.md')),
]


def _page(name):
  return (ROOT / 'docs' / f'{name}.md').read_text()


def _table(text, head):
  """Returns the lines below a table's first line, as one string."""
  return text.partition(head)[2].partition('\n\n')[0]


def _fields(cell):
  """Returns the keyword arguments that a cell names in backticks."""
  return eval(f'dict({", ".join(re.findall(r"`([^`]*)`", cell))})')


def test_help_names_every_attention_form():
  fields = {each.name: each for each in dataclasses.fields(Architecture)}
  for name in ops.FORMS | ops.FULL_FORMS:
    assert f"'{name}'" in fields['score_fn'].metadata['help']


def test_data_lists_every_field_of_reading():
  table = _table(_page('data'), '| field | default |')
  cells = re.findall(r'^\| (`.*?) \|', table, re.MULTILINE)
  fields = re.findall(r'`(\w+)`', ' '.join(cells))
  assert sorted(fields) == sorted(recipes.cifar10('rmt_compact').data)


def _record(name):
  return json.loads((ROOT / 'results' / 'folder' / f'{name}.json').read_text())


@pytest.mark.parametrize(
    ('name', 'row'),
    [
        ('three_probe', 'linear probe'),
        ('three_layers', 'layer-wise rates'),
        ('three_all', 'all alike'),
        ('three_scratch', 'from scratch'),
    ],
)
def test_training_quotes_three_classes(name, row):
  table = _table(_page('training'), '| | more arguments | trained parameters |')
  (line,) = re.findall(rf'^\| {row} \|.*', table, re.MULTILINE)
  share = _record(name)['summary']['last']['val_ema_accuracy']
  assert line.rpartition('| ')[2].strip('* |') == f'{100 * share:.2f}'


@pytest.mark.parametrize(
    ('name', 'row'),
    [('tiny_all', 'all alike'), ('tiny_scratch', 'from scratch')],
)
def test_training_quotes_fifty_classes(name, row):
  table = _table(_page('training'), '| | more arguments | 2 | 4 | 6 |')
  (line,) = re.findall(rf'^\| {row} \|.*', table, re.MULTILINE)
  epochs = [e for e in _record(name)['epochs'] if 'val_accuracy' in e]
  want = [f'{100 * epoch["val_accuracy"]:.2f}' for epoch in epochs]
  assert re.findall(r'\d\d\.\d\d', line) == want


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
  table = _table(_page('models'), '| row | model | fields |')
  rows = re.findall(r'^\| .* \| `(\w+)` \| (.*) \|$', table, re.MULTILINE)
  assert len(rows) == 15
  for name, cell in rows:
    fields = _fields(cell)
    arch = gswinrmt_jax.create_model(name, num_classes=10, **fields).arch
    named = vars(gswinrmt_jax.create_model(name, num_classes=10).arch)
    # Each field of a row changes something.
    changed = {field for field in named if getattr(arch, field) != named[field]}
    assert changed == fields.keys(), (name, cell)


def test_experiments_lists_every_switch():
  for base, table in ablations.SWITCHES.items():
    rows = _table(_page('experiments'), f'| `{base}` | changes |')
    found = {}
    for name, cell, against in re.findall(
        r'^\| `(\w+)` \| (.*) \| (.*)\|$', rows, re.MULTILINE
    ):
      found[name] = (_fields(cell), against.strip(' `') or 'base')
    expected = {
        name: (dict(switch.fields), switch.against)
        for name, switch in table.items()
        if name != 'base'
    }
    assert found == expected


def test_experiments_lists_every_set_of_runs():
  found = re.findall(
      r'^\| `([\w-]+)` \| (\d+) \|', _page('experiments'), re.MULTILINE
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
    assert re.search(rf'`{name}`.*{count:,}', _page('models')), name


def test_models_has_heads_ratios_and_stochastic_depth():
  rows = _table(_page('models'), '| name | heads | FFN ratio |').splitlines()
  listed = {}
  for row in rows[2:]:
    names, heads, ratios, rates = row.strip('| ').split(' | ')
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


def test_models_tells_where_maps_were_measured_to_point():
  found = json.loads((ROOT / 'results' / 'where_it_looks.json').read_text())
  rows = _table(_page('models'), '| stage | tokens |').splitlines()[2:]
  assert found['images'] == 500
  assert [row.split(' | ', 2)[2] for row in rows] == [
      f'{stage["cam_on_digit"]:.1%} | {stage["random_on_digit"]:.1%} | '
      f'{stage["gate_on_digit"]:.2f} | {stage["gate_elsewhere"]:.2f} |'.replace(
          '%', ' %'
      )
      for stage in found['stages']
  ]


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
  page = _page('training').partition('## A recipe of your own')[2]
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
  headings = re.findall(r'^## ([\w-]+)$', _page('cli'), re.MULTILINE)
  printed = re.findall(r'{command-help} ([\w-]+)', _page('cli'))
  assert headings == printed
  assert sorted(headings) == sorted(main._COMMANDS)


def test_configuration_has_every_section():
  sections = {path.rpartition('.')[0] for path in recipes.FIELDS}
  printed = re.findall(r'{config-fields} ?(\w*)', _page('config'))
  assert sorted(printed) == sorted(sections)


def test_reliability_names_tests_that_exist():
  text = _page('reliability')
  named = re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', text)
  rows = _table(text, '| test |').splitlines()[2:]
  assert len(named) == len(rows) > 20
  for file, test in named:
    assert f'\ndef {test}(' in (ROOT / file).read_text(), test


def _rows(text, head):
  """Returns the cells of each row of a table."""
  return [
      [cell.strip() for cell in row.strip('|').split('|')]
      for row in _table(text, head).splitlines()[2:]
  ]


def test_the_curves_of_small_images_are_those_of_the_results():
  """The runs of the weights that ship, their restarts, and AdamW."""

  def read(path):
    return json.loads((ROOT / path).read_text())

  def accuracies(record, epoch, names=('val_accuracy', 'val_ema_accuracy')):
    epochs = {entry['epoch']: entry for entry in record['epochs']}
    found = epochs.get(int(epoch), {})
    return [f'{100 * found[name]:.2f}' if found else '' for name in names]

  text, runs = _page('reproduction'), []
  for row in _rows(text, '| run | pixels |'):
    run = read(row[-1].strip('`'))
    best = run['summary']['best']
    prefix = {'raw': '', 'ema': 'ema_'}[best['weights']]
    names = [f'{split}_{prefix}accuracy' for split in ('val', 'test')]
    assert row[2:-1] == [
        str(run['config']['num_epochs']),
        str(run['config']['seed']),
        f'{best["epoch"]}, {best["weights"].replace("ema", "EMA")}',
        *(f'{100 * best[name]:.2f}' for name in names),
    ]
    runs.append(run)
  first, second, third = runs
  rows = _rows(text, '| epoch | run 2 |')
  assert len(rows) == 9
  for epoch, *shown in rows:
    assert shown == accuracies(second, epoch) + accuracies(third, epoch)
  adamw = read('results/jpeg75/cifar10_small_adamw.json')
  rows = _rows(text, '| epoch | AdamW |')
  assert len(rows) == 10
  for epoch, *shown in rows:
    plain = accuracies(adamw, epoch, ['val_accuracy'])
    assert shown == plain + accuracies(first, epoch)


def test_the_small_models_compared_are_those_of_the_results():
  """Columns are models, first with raw weights, then with their average."""
  part = _page('reproduction').partition('**The models compared.**')[2]
  head, _, *rows = _table(part, '| epoch ').splitlines()
  models = re.findall(r'\| (\w+)(?:, (EMA))? ', head)
  files = {'RMT': 'small_rmt', 'Retention': 'small', 'SWAT': 'small_swat'}
  records = {}
  for model, _ in models:
    path = ROOT / 'results' / 'jpeg75' / f'cifar10_{files[model]}.json'
    record = json.loads(path.read_text())
    records[model] = {entry['epoch']: entry for entry in record['epochs']}
  assert len(rows) == 12 and list(records) == list(files) and len(models) == 6
  for row in rows:
    epoch, *shown = (cell.strip() for cell in row.strip('|').split('|'))
    for (model, average), cell in zip(models, shown, strict=True):
      score = 'val_ema_accuracy' if average else 'val_accuracy'
      entry = records[model].get(int(epoch))
      assert cell == (f'{100 * entry[score]:.2f}' if entry else '\N{EN DASH}')


def test_the_first_epochs_for_95_percent_are_those_of_the_results():
  part = _page('reproduction').partition('**A recipe for 95 %.**')[2]
  record = json.loads(
      (ROOT / 'results' / 'jpeg75' / 'cifar10_95.json').read_text()
  )
  for epoch in record['epochs']:
    assert f'{100 * epoch["val_accuracy"]:.2f} %' in part
    assert f'{epoch["seconds"]:,.0f}' in part


def _ends(values):
  """Formats the flattest and the most informative decile, as the page."""
  if not values or values[0] is None:
    return ''
  first, last = (f'{values[place]:.2f}' for place in (0, 9))
  return '1' if first == last == '1.00' else f'{first} → {last}'


def _mean(passes):
  rows = np.array([row for rows in passes.values() for row in rows], float)
  return [None if np.isnan(value) else value for value in rows.mean(0)]


@pytest.mark.parametrize(
    ('name', 'heading'),
    [
        ('small', '## A first result'),
        ('small_swat', '## SWAT in the same windows'),
    ],
)
def test_the_analysis_of_small_models_is_that_of_the_results(name, heading):
  path = ROOT / 'results' / 'jpeg75' / f'analysis_cifar10_{name}.json'
  part = _page('analysis').partition(heading)[2]
  rows = _table(part, '| stage | tokens |').splitlines()[2:]
  expected = []
  for number, stage in enumerate(json.loads(path.read_text())['stages'], 1):
    ranks = stage['rank']
    sums = [_ends(_mean(stage['row_sum']))] if name == 'small_swat' else []
    gate = stage['swiglu' if name == 'small_swat' else 'gate']
    passed = [_ends(stage['passed'])] if name == 'small' else []
    cells = (
        str(number),
        '\N{MULTIPLICATION SIGN}'.join(map(str, stage['tokens'])),
        str(stage['window']),
        _ends(_mean(stage['entropy'])),
        *sums,
        _ends(gate['mean']),
        _ends(gate['closed']),
        *passed,
        f'{ranks["plain"]:.1f}, {ranks["gated"]:.1f} of {ranks["most"]}',
    )
    expected.append(f'| {" | ".join(cells)} |')
  assert rows == expected


@pytest.mark.parametrize('name', ['RMT', 'Retention', 'SWAT'])
def test_the_analysis_of_the_three_models_is_that_of_the_results(name):
  path = ROOT / 'results' / 'jpeg75' / f'analysis_cifar10_{name.lower()}.json'
  stages = json.loads(path.read_text())['stages']

  found = re.findall(rf'^\| {name}, \d.*$', _page('analysis'), re.M)
  expected = []
  for number, stage in enumerate(stages, 1):
    gate, ranks = stage.get('gate', {}), stage['rank']
    cells = (
        f'{name}, {number}',
        '\N{MULTIPLICATION SIGN}'.join(map(str, stage['tokens'])),
        _ends(_mean(stage['entropy'])),
        _ends(_mean(stage['row_sum'])),
        _ends(gate.get('mean')),
        _ends(gate.get('closed')),
        _ends(stage.get('passed')),
        ', '.join(
            f'{rank:.1f}' for rank in (ranks['plain'], ranks['gated']) if rank
        ),
    )
    expected.append(f'| {" | ".join(cells)} |'.replace('|  ', '| '))
  assert [row.replace('|  ', '| ') for row in found] == expected
