"""Cells and tables."""

from gswinrmt_jax.experiments import markdown
from gswinrmt_jax.experiments.statistics import Difference, Mean


def test_cells():
  assert markdown.percent(Mean(1, 0.859, None)) == '85.90'
  assert markdown.percent(Mean(3, 0.859, 0.0012)) == '85.90 ± 0.12'
  assert markdown.percent(None) == '\N{EN DASH}'
  assert markdown.signed(0.5) == '+0.50'
  assert markdown.signed(-0.5) == '\N{MINUS SIGN}0.50'
  assert markdown.points(Difference(1, 0.0056)) == '+0.56'
  found = markdown.points(Difference(3, 0.0056, -0.01, 0.0212))
  assert found == '+0.56 (\N{MINUS SIGN}1.00 to +2.12)'
  assert markdown.points(None) == '\N{EN DASH}'
  assert markdown.numbers([1, 4]) == '[1] [4]'


def test_table():
  table = markdown.table(['', 'a'], [['b', ''], ['', '1']])
  assert table == '| | a |\n| --- | --- |\n| b | |\n| | 1 |'
