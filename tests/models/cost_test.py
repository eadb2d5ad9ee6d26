"""Tests multiply-accumulates against counts of the released RMT."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import parameter_counts
import pytest

import gswinrmt_jax
from gswinrmt_jax import ops
from gswinrmt_jax.models import cost
from gswinrmt_jax.models.dense import create

# fvcore's counts of the authors' code at 224 x 224. Divided by 2^30, they are
# the 2.5, 4.5, 9.7 and 18.2 that the paper prints.
_RELEASED = {
    'rmt_t': {
        'convolution': 537_535_488,
        'linear': 1_825_021_952,
        'attention': 274_663_424,
        'layer norm': 10_536_960,
        'batch norm': 2_860_032,
    },
    'rmt_s': {
        'convolution': 604_721_152,
        'linear': 3_931_611_136,
        'attention': 240_242_688,
        'layer norm': 20_070_400,
        'batch norm': 2_860_032,
    },
    'rmt_b': {
        'convolution': 966_402_304,
        'linear': 8_962_056_192,
        'attention': 444_659_712,
        'layer norm': 37_757_440,
        'batch norm': 3_537_408,
    },
    'rmt_l': {
        'convolution': 1_730_457_344,
        'linear': 17_137_934_336,
        'attention': 619_573_248,
        'layer norm': 52_559_360,
        'batch norm': 4_904_704,
    },
}
_PRINTED = {'rmt_t': 2.469, 'rmt_s': 4.470, 'rmt_b': 9.699, 'rmt_l': 18.203}


@pytest.mark.parametrize(
    'name',
    [
        'rmt_t',
        pytest.param('rmt_s', marks=pytest.mark.slow),
        pytest.param('rmt_b', marks=pytest.mark.slow),
        pytest.param('rmt_l', marks=pytest.mark.slow),
    ],
)
def test_the_released_models_to_the_unit(name):
  model = gswinrmt_jax.create_model(name, num_classes=1000)
  counted = cost.count(model, (224, 224))
  assert counted.operations == _RELEASED[name]
  assert counted.parameters == parameter_counts.COUNTS[name][1]
  assert round(counted.macs / 2**30, 3) == _PRINTED[name]


def _documented():
  """Yields the rows of segmenters and detectors in docs/models.md."""
  page = pathlib.Path(__file__).parents[2] / 'docs' / 'models.md'
  heads = {title: head for head, title in create.TITLES.items()}
  for line in page.read_text().splitlines():
    cells = [cell.strip() for cell in line.strip('|').split('|')]
    if cells[0].strip('`') in create.TITLES and len(cells) == 7:
      size = (800, 1280)
      head, _, name, *figures = cells
    elif cells[0] in heads and len(cells) == 7:
      title, name, pixels, *figures = cells
      head, size = heads[title], tuple(
          map(int, pixels.split('\N{MULTIPLICATION SIGN}'))
      )
    else:
      continue
    row = head.strip('`'), name.lower().replace('-', '_'), size, figures
    slow = row[:2] not in (
        ('fpn', 'rmt_t'),
        ('uper', 'rmt_s'),
        ('retina', 'rmt_t'),
        ('mask', 'rmt_t'),
    )
    marks = [pytest.mark.slow] * slow
    yield pytest.param(*row, marks=marks, id='-'.join(row[:2]))


def test_all_dense_models_are_documented():
  assert len([*_documented()]) == 17


@pytest.mark.parametrize(('head', 'name', 'size', 'figures'), [*_documented()])
def test_dense_models_of_the_paper(head, name, size, figures):
  """The paper rounds or truncates: for 30, a value is between 29.5 and 31.

  Its operations, in units of 10^9, exclude attention, which the counters of
  mmsegmentation and mmdetection do not see, and UperNet's auxiliary head, which
  is used only in training. Those of heads on boxes are of 1,000 boxes (in each
  stage of a cascade) and 100 masks.
  """
  classes = 80 if size == (800, 1280) else 150
  model = create.create(name, {'head': head}, num_classes=classes)
  counted = cost.count(model, size)
  *ours, printed = figures
  assert ours == [
      f'{counted.parameters:,}',
      f'{counted.macs_without_attention / 1e9:.1f}',
      f'{counted.macs / 1e9:.1f}',
  ]
  for value, text in zip(
      (counted.parameters / 1e6, counted.macs_without_attention / 1e9),
      printed.replace(' M', '').split(', '),
      strict=True,
  ):
    unit = 10.0 ** -len(text.partition('.')[2])
    assert -unit / 2 <= value - float(text) < unit


def test_pooling_is_not_counted():
  """Its matmuls are too few to show in the documented figures."""
  pool = functools.partial(ops.adaptive_average_pool, bins=3)
  program = jax.make_jaxpr(pool)(jnp.ones((1, 7, 5, 2)))
  assert not [*cost._equations(program.jaxpr)]


def test_a_window_costs_what_is_in_it():
  """Stage 1 has 16 x 24 tokens, in windows of 8 and without windows."""
  fields = {'depths': (1, 1, 1, 1), 'widths': (16, 16, 16, 16)}
  fields |= {'num_heads': (2, 2, 2, 2), 'shift': False}
  counts = {}
  for window in (8, 0):
    model = gswinrmt_jax.create_model(
        'retention_compact', num_classes=10, window_size=window, **fields
    )
    counts[window] = cost.count(model, (64, 96)).operations
  # Each token, channel and pass has scores and mixing over one axis.
  maps = [(16, 24), (8, 12), (4, 6), (2, 3)]
  whole = sum(2 * h * w * 16 * (h + w) for h, w in maps)
  # Windows of 8 pad 12 to 16; the smaller maps are one window.
  windows = 2 * 16 * (16 * 24 * 16 + 8 * 16 * 16)
  windows += sum(2 * h * w * 16 * (h + w) for h, w in maps[2:])
  assert counts[0]['attention'] == whole
  assert counts[8]['attention'] == windows
