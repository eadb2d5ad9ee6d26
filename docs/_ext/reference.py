"""Reference pages that are generated from the package.

The directive `command-help` prints a command's own `--help`, `config-fields`
lists a section of `recipes.FIELDS`, `model-fields` those of `Architecture`, and
`api-summary` functions or modules with a line each. `api/*.md` is written
before each build, one page for each folder of the package.
"""

import contextlib
import dataclasses
import importlib
import io
import pathlib
import pkgutil
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import gswinrmt_jax
from gswinrmt_jax import recipes
from gswinrmt_jax.commands import main
from gswinrmt_jax.models.architecture import Architecture

# Commands have a page of their own.
_LEFT_OUT = {'commands'}
_TOP = 'package'


class CommandHelp(SphinxDirective):
  """```{command-help} evaluate``` prints `gswinrmt evaluate --help`."""

  required_arguments = 0
  optional_arguments = 1

  def run(self):
    """Returns the help as a literal block."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
      main.main([*self.arguments, '--help'])
    text = said.getvalue().strip()
    if not text:
      raise self.error(f'no help of {self.arguments}')
    block = nodes.literal_block(text, text)
    block['language'] = 'none'
    return [block]


class ConfigFields(SphinxDirective):
  """```{config-fields} optimizer``` lists the fields `config.optimizer.*`."""

  required_arguments = 0
  optional_arguments = 1

  def run(self):
    """Returns a table: name, value, meaning, values, free on resume."""
    section = self.arguments[0] if self.arguments else ''
    head = ['field', 'CIFAR-10', 'meaning', 'values', 'free']
    recipe = recipes.cifar10('retention_compact')
    rows = [
        [
            f'`{path.rpartition(".")[2]}`',
            f'`{_short(recipe[path])}`',
            field.meaning.replace('|', '\\|'),
            _values(field),
            'yes' if field.free else '',
        ]
        for path, field in recipes.FIELDS.items()
        if path.rpartition('.')[0] == section
    ]
    if not rows:
      raise self.error(f'no fields in {section!r}')
    return _table(self, head, rows)


class ModelFields(SphinxDirective):
  """```{model-fields}``` lists the fields of `Architecture`."""

  def run(self):
    """Returns a table: name, Retention's value, meaning."""
    rows = [
        [
            f'`{field.name}`',
            f'`{_short(field.default)}`',
            field.metadata['help'].replace('|', '\\|'),
        ]
        for field in dataclasses.fields(Architecture)
    ]
    return _table(self, ['field', 'Retention', 'meaning'], rows)


class ApiSummary(SphinxDirective):
  """Lists what users import, or with the argument `modules` every module."""

  required_arguments = 0
  optional_arguments = 1

  def run(self):
    """Returns a table: the name, linked, and the first line of its text."""
    if self.arguments:
      names = [name for room in _rooms().values() for name in room]
      found = [
          ('mod', name, importlib.import_module(name))
          for name in names
          if name not in ('gswinrmt_jax', 'gswinrmt_jax.__main__')
      ]
    else:
      found = [
          ('func', f'gswinrmt_jax.{name}', getattr(gswinrmt_jax, name))
          for name in gswinrmt_jax.__all__
      ]
    rows = [
        f'| {{py:{role}}}`{name} <{name}>` | {_first_line(each)} |'
        for role, name, each in found
    ]
    head = ['| | |', '| --- | --- |']
    return self.parse_text_to_nodes('\n'.join([*head, *rows]))


def _table(directive, head, rows):
  """Returns a table, given the text of its cells."""
  lines = [
      f'| {" | ".join(row)} |' for row in [head, ['---'] * len(head), *rows]
  ]
  return directive.parse_text_to_nodes('\n'.join(lines))


def _first_line(documented):
  """Returns the first sentence of a docstring."""
  line = documented.__doc__.strip().partition('\n')[0]
  return line.replace('|', '\\|')


def _short(value):
  """Returns a default as a recipe would spell it, rounded."""
  if isinstance(value, tuple):
    return f'({", ".join(_short(each) for each in value)})'
  return f'{value:.4g}' if isinstance(value, float) else repr(value)


def _values(field):
  """Returns what a field may be, as short text; '' for any text."""
  if field.choices:
    return ', '.join(f'`{choice}`' for choice in field.choices)
  if isinstance(field.default, bool):
    return '`True`, `False`'
  if isinstance(field.default, str):
    return ''
  most = f'{field.at_most:,}' if field.at_most else ''
  if isinstance(field.default, tuple):
    if isinstance(field.default[0], int):
      most = f' to {most}' if most else ' or more'
      return f'pair, each {field.at_least:g}{most}'
    return f'pair in (0, {most}]' if most else 'pair above 0'
  if field.below is not None:
    return f'{field.at_least:g} ≤ x < {field.below:g}'
  return f'{field.at_least:g} to {most}' if most else f'≥ {field.at_least:g}'


def _rooms():
  """Returns the names of the modules of each folder of the package."""
  modules = {_TOP: ['gswinrmt_jax']}
  for found in pkgutil.walk_packages(gswinrmt_jax.__path__, 'gswinrmt_jax.'):
    room = found.name.split('.')[1]
    alone = '.' not in found.name.partition('.')[2] and not found.ispkg
    if room not in _LEFT_OUT:
      modules.setdefault(_TOP if alone else room, []).append(found.name)
  return modules


def write_api_pages(app: Sphinx) -> None:
  """Writes api/ROOM.md for each folder of the package, and removes others."""
  folder = pathlib.Path(app.srcdir) / 'api'
  folder.mkdir(exist_ok=True)
  modules = _rooms()
  for room, names in modules.items():
    title = 'gswinrmt_jax' if room == _TOP else f'gswinrmt_jax.{room}'
    blocks = [f'# {title}']
    for name in names:
      heading = [] if name == title else [f'## {name.removeprefix(title)[1:]}']
      blocks += [*heading, _directives(name)]
    _write(folder / f'{room}.md', '\n\n'.join(blocks) + '\n')
  for path in folder.glob('*.md'):
    if path.stem not in modules:
      path.unlink()


def _directives(name):
  """Documents a module."""
  module = importlib.import_module(name)
  lines = [f'.. automodule:: {name}']
  # What a folder offers is documented in its files.
  if name == 'gswinrmt_jax' or not hasattr(module, '__path__'):
    lines.append('   :members:')
  return '\n'.join(['```{eval-rst}', *lines, '```'])


def shorten_arrays(app, what, name, obj, options, signature, returned):
  """Writes `Float[Array, 'b h w c']`, whatever module JAX's arrays are from."""
  del app, what, name, obj, options  # Of the event.
  return tuple(
      text and text.replace('jaxlib._jax.', '')
      for text in (signature, returned)
  )


def mark_formulas(app, what, name, obj, options, lines: list[str]) -> None:
  """Makes formulas and aligned lists of a docstring literal, as they are meant.

  A formula is indented after a blank line; what a section such as `Args:` lists
  follows its heading without one. A list has its second column aligned.
  """
  del app, what, name, obj, options  # Of the event.
  text, above, listed = [], '', False
  for before, line in zip(['', *lines], lines, strict=False):
    begins = bool(line.strip()) and not before.strip()
    if begins:
      listed = bool(re.match(r'\w+ {2,}\S', line))
      if listed or (line.startswith('  ') and above and above[0] != ' '):
        text += ['::', '']
    text.append(f'    {line}' if listed and line.strip() else line)
    above = line if line.strip() else above
  lines[:] = text


def _write(path, text):
  """Leaves a page alone that says the same, so that it is not read again."""
  if not path.exists() or path.read_text() != text:
    path.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
  """Registers the directives and the API pages."""
  app.add_directive('command-help', CommandHelp)
  app.add_directive('config-fields', ConfigFields)
  app.add_directive('model-fields', ModelFields)
  app.add_directive('api-summary', ApiSummary)
  app.connect('builder-inited', write_api_pages)
  app.connect('autodoc-process-signature', shorten_arrays)
  # Before napoleon, which is at 500.
  app.connect('autodoc-process-docstring', mark_formulas, priority=400)
  return {'parallel_read_safe': True, 'parallel_write_safe': True}
