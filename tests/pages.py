"""Parts of the documents, for the tests of what they say."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]


def read(name):
  """Returns a page of `docs/`."""
  return (ROOT / 'docs' / f'{name}.md').read_text()


def section(text, heading):
  """Returns what is below a heading, or after a bold one, up to the next."""
  pattern = rf'^{re.escape(heading)}.*?(?=^\*\*|^#|\Z)'
  return re.search(pattern, text, re.MULTILINE | re.DOTALL)[0]


def prose(text):
  """Returns a text without its line breaks."""
  return ' '.join(text.split())


def table(text, head):
  """Returns the lines below a table's first line, as one string."""
  return text.partition(head)[2].partition('\n\n')[0]


def rows(text, head):
  """Returns the cells of each row of a table."""
  return [
      [cell.strip() for cell in row.strip('|').split('|')]
      for row in table(text, head).splitlines()[2:]
  ]
