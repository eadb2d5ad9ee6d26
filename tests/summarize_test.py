"""The table of models."""

import pytest

from gswinrmt_jax.commands import main, summarize
from gswinrmt_jax.models import named


def test_it_knows_every_model():
  assert summarize._SETTINGS.keys() == named.MODELS.keys()


def test_a_row(capsys):
  assert main.main(['summarize', 'rmt_t']) == 0
  head, row = capsys.readouterr().out.splitlines()
  assert row.split() == (
      [
          'rmt_t',
          '1000',
          '224',
          '14,334,216',
          '2.469',
          '5.288',
          '14',
          'M,',
          '2.5',
      ]
  )
  assert head.index('parameters') + len('parameters') == row.index('216') + 3
  # The printed multiply-accumulates are for 224 pixels.
  assert main.main(['summarize', 'rmt_t', '--image-size=64']) == 0
  assert capsys.readouterr().out.splitlines()[1].endswith('   14 M')


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        ([], 'name a model, or --all'),
        (['rmt_tt'], "no model 'rmt_tt': did you mean rmt_t?"),
        (['rmt_t', '--image-size=8'], 'rmt_t: Images must be at least 32x32'),
    ],
)
def test_mistakes_are_one_line(arguments, said, capsys):
  assert main.main(['summarize', *arguments]) == 2
  printed = capsys.readouterr().err
  assert said in printed and printed.count('\n') == 1
