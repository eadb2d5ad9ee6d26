"""Pictures with something in them, and the front of what nothing beats."""

import numpy as np
from PIL import Image

from gswinrmt_jax.experiments import charts
from gswinrmt_jax.experiments.statistics import Mean

RMT = (0, 114, 178)  # the colour of RMT


def _point(label, cost, accuracy, base='rmt'):
  return charts.Point(label, base, cost, Mean(1, accuracy, None))


def _pixels(path, color):
  image = np.asarray(Image.open(path).convert('RGB')).astype(int)
  return (np.abs(image - color).max(-1) < 30).sum()


def test_front():
  """Cheaper first; only what is better than all that is cheaper."""
  points = [
      _point('dear', 3.0, 0.8),
      _point('cheap', 1.0, 0.5),
      _point('worse', 2.0, 0.4),
      _point('as good', 4.0, 0.8),
      _point('same cost, better', 1.0, 0.6),
  ]
  assert [one.label for one in charts.front(points)] == [
      'same cost, better',
      'dear',
  ]
  assert charts.front([]) == []


def test_curves(tmp_path):
  path = tmp_path / 'curves.png'

  def drawn(epochs, printed):
    curve = charts.Curve('rmt', epochs, printed)
    charts.write_curves(path, [curve], 'title')
    return _pixels(path, RMT)

  epochs = {1: Mean(1, 0.2, None), 2: Mean(1, 0.4, None), 3: Mean(2, 0.5, 0.1)}
  empty, ours = drawn({}, {}), drawn(epochs, {})
  both = drawn(epochs, {1: 45.0, 2: 25.0, 3: 30.0})
  assert empty == 0 and ours > 200 and both > ours + 60
  assert [file.name for file in tmp_path.iterdir()] == ['curves.png']


def test_costs_few_have_each_a_colour_many_that_of_their_base(tmp_path):
  path = tmp_path / 'costs.png'

  def drawn(count):
    points = [_point('rmt', 1.0, 0.5)]
    points += [
        _point(f'rmt,{k}', 1.0 + k / 10, 0.4 - k / 100) for k in range(count)
    ]
    charts.write_costs(path, points, 'title', cost='cost', accuracy='accuracy')
    return _pixels(path, RMT)

  one, few, many = drawn(0), drawn(charts.MANY - 1), drawn(charts.MANY)
  assert one > 30 and abs(few - one) < one
  # Those of many are drawn in the colour of RMT, made lighter.
  image = np.asarray(Image.open(path).convert('RGB')).astype(int)
  light = np.array(RMT) * 0.6 + 255 * 0.4
  assert (np.abs(image - light).max(-1) < 12).sum() > 100 and many >= one / 2


def test_differences_have_their_base_as_a_line_at_zero(tmp_path):
  path = tmp_path / 'over.png'
  curve = charts.Curve('rmt,gate', {1: Mean(1, 0.2, None)})
  charts.write_curves(path, [curve], 'title')
  assert _pixels(path, RMT) < 200  # one point, in the colour of its base
  charts.write_curves(path, [curve], 'title', over='rmt')
  assert _pixels(path, RMT) > 500


def test_the_only_one_of_a_base_has_its_colour():
  def colors(*labels):
    return list(charts._colors(labels))

  rmt, swat, other, again = colors('rmt', 'swat,gate', 'rmt,gate', 'rmt,lce')
  assert colors('rmt,gate') == [rmt] and colors('swat') == [swat]
  assert len({rmt, swat, other, again}) == 4
  assert rmt not in colors('other', 'rmt,a', 'rmt,b')
