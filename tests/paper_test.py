"""The printed figures agree with each other, as far as they can."""

import pathlib

import pytest

from gswinrmt_jax.experiments import paper

TEXT = pathlib.Path(__file__).parents[2] / 'shared/papers/gated_swinrmt.md'
BENCHMARKS = (paper.MINI_IMAGENET, paper.CIFAR10)


@pytest.mark.parametrize('benchmark', BENCHMARKS)
def test_tables_agree(benchmark):
  for first, second, printed in benchmark.changes:
    one, other = benchmark.models[first], benchmark.models[second]
    assert other.test - one.test == pytest.approx(printed, abs=1e-9)
  for printed in benchmark.models.values():
    # Curves of Table 4 are rounded to a tenth.
    assert printed.curve[benchmark.epochs] == pytest.approx(
        printed.val, abs=0.0501
    )


def test_generalization_gaps_of_section_4():
  gaps = [one.val - one.test for one in paper.MINI_IMAGENET.models.values()]
  assert gaps == pytest.approx([1.47, 1.19, 0.88])


@pytest.mark.skipif(not TEXT.exists(), reason='the paper is not at hand')
def test_every_figure_stands_in_the_paper():
  lines = TEXT.read_text().replace('<b>', '').replace('</b>', '').splitlines()
  names = {'rmt': 'RMT', 'retention': 'Retention', 'swat': 'SWAT'}
  for benchmark in BENCHMARKS:
    for base, printed in benchmark.models.items():
      accuracies = list(printed.curve.values())
      found = [
          line
          for line in lines
          if line.startswith(names[base]) and _numbers(line) == accuracies
      ]
      assert len(found) == 1, accuracies
      results = [line for line in lines if f'{printed.test_loss:.4f}' in line]
      assert any(
          f'{printed.val:.2f}%' in line and f'{printed.test:.2f}%' in line
          for line in results
      )


def _numbers(line):
  """Returns the cells behind the first, if they are numbers."""
  try:
    return [float(cell) for cell in line.split('\t')[1:]]
  except ValueError:
    return []
