"""Tests the training curves and the plot of an augmented batch."""

import io
import threading
from unittest import mock

import jax.numpy as jnp
from matplotlib import figure as figure_lib
import numpy as np
from PIL import Image
import pytest

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import datasets
from gswinrmt_jax.ops import assignment
from gswinrmt_jax.runs import plots, scores
from gswinrmt_jax.terminal import Terminal

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
ENTRIES = [
    {
        'kind': 'train',
        'epoch': 0.5,
        'loss': 2.0,
        'accuracy': 0.25,
        'learning_rate': 1e-3,
    },
    {
        'kind': 'epoch',
        'epoch': 1,
        'train_loss': 1.5,
        'train_accuracy': 0.5,
        'val_loss': 1.25,
        'val_accuracy': 0.75,
    },
]


@pytest.fixture
def drawn(monkeypatch):
  """Returns a list that receives every figure that is created."""
  found = []
  init = figure_lib.Figure.__init__

  def noted(self, *args, **options):
    init(self, *args, **options)
    found.append(self)

  monkeypatch.setattr(figure_lib.Figure, '__init__', noted)
  return found


def test_writes_a_picture_whole(tmp_path):
  path = tmp_path / 'curves.png'
  plots.draw_curves(tmp_path, ENTRIES, Terminal())
  first = np.asarray(Image.open(path).convert('L'))
  assert first.shape == (1280, 2400)
  assert (first < 128).mean() > 0.005
  plots.draw_curves(tmp_path, [], Terminal())
  assert not np.array_equal(first, np.asarray(Image.open(path).convert('L')))
  assert [file.name for file in tmp_path.iterdir()] == ['curves.png']


def test_what_matplotlib_cannot_draw_ends_no_run(tmp_path, monkeypatch):
  """As with `text.usetex` in a user's settings, and no LaTeX."""
  error = RuntimeError('latex could not be found\nmore')
  monkeypatch.setattr(plots, '_curves', mock.Mock(side_effect=error))
  stream = io.StringIO()
  plots.draw_curves(tmp_path, [], Terminal(stream))
  said = 'curves.png was not written (latex could not be found)\n'
  assert stream.getvalue() == said


def test_a_name_that_the_font_cannot_write_is_drawn_without_a_warning(
    tmp_path, recwarn
):
  (folder := tmp_path / '猫').mkdir()
  plots.draw_curves(folder, ENTRIES, Terminal())
  assert (folder / 'curves.png').exists() and not recwarn


def test_one_thread_draws_all_curves(tmp_path, monkeypatch):
  """Matplotlib opens its font files once for each thread, and keeps them."""
  threads = []
  monkeypatch.setattr(
      plots,
      'draw_curves',
      lambda *_: threads.append(threading.current_thread()),
  )
  curves = plots.Curves(tmp_path, Terminal())
  while len(threads) < 3:
    curves.update(ENTRIES)
  curves.wait()
  assert len({*threads}) == 1


def test_what_is_drawn_of_a_finished_run(tmp_path, drawn):
  """Accuracy in percent, range of gamma, best epoch and test split."""
  gamma = {'grad_norm': 3.0, 'gamma_min': 0.5, 'gamma_max': 0.75}
  entries = [{**ENTRIES[0], **gamma}, ENTRIES[1]]
  entries.append({**ENTRIES[1], 'epoch': 2, 'val_accuracy': 0.25})
  summary = {'best': {'epoch': 1, 'test_accuracy': 0.625, 'test_loss': 1.5}}
  plots.draw_curves(tmp_path, entries, Terminal(), summary)
  loss, accuracy, rate, norm, decay, legend = drawn[0].axes
  assert [axes.get_ylabel() for axes in (loss, accuracy, rate, norm)] == [
      'loss',
      'accuracy (%)',
      'learning rate',
      'gradient norm',
  ]
  lines = {line.get_label(): line for line in accuracy.get_lines()}
  assert list(lines['validation'].get_ydata()) == [75, 25]
  assert list(lines['train, per interval'].get_ydata()) == [25]
  best = lines['best epoch: 1, validation 75.00%']
  test = lines['test at the best epoch: 62.50%']
  assert list(best.get_xdata()) == [1, 1]
  assert (list(test.get_xdata()), list(test.get_ydata())) == ([1], [62.5])
  assert list(loss.get_lines()[-1].get_ydata()) == [1.5]
  assert list(norm.get_lines()[0].get_ydata()) == [3]
  assert [list(line.get_ydata()) for line in decay.get_lines()[:2]] == [
      [0.5],
      [0.75],
  ]
  named = [text.get_text() for text in legend.get_legend().get_texts()]
  assert named == list(lines)


def test_a_segmenter_with_an_average(tmp_path, drawn):
  """Mean IoU and accuracy of pixels; without learned decay a panel fewer."""
  train = {'kind': 'train', 'epoch': 0.5, 'loss': 2.0, 'pixel_accuracy': 0.375}
  train['learning_rate'] = 1e-3
  epoch = {
      'kind': 'epoch',
      'epoch': 1,
      'train_loss': 1.5,
      'train_pixel_accuracy': 0.5,
      'val_loss': 1.25,
      'val_pixel_accuracy': 0.75,
      'val_mean_iou': 0.25,
      'val_ema_loss': 1.0,
      'val_ema_mean_iou': 0.375,
  }
  test = {'test_mean_iou': 0.25, 'test_loss': 2.0}
  test |= {'test_ema_mean_iou': 0.125, 'test_ema_loss': 1.0}
  plots.draw_curves(tmp_path, [train, epoch], Terminal(), {'best': test})
  assert len(drawn[0].axes) == 5
  axes = drawn[0].axes[1]
  assert axes.get_ylabel() == 'mean IoU, pixel accuracy (%)'
  lines = {line.get_label(): line for line in axes.get_lines()}
  for label, value in (
      ('train, per interval', 37.5),
      ('train (augmented), pixel accuracy', 50),
      ('validation, pixel accuracy', 75),
      ('validation, mean IoU', 25),
      ('validation, EMA, mean IoU', 37.5),
      ('mean IoU, test at the best epoch: 12.50%', 12.5),
  ):
    assert list(lines[label].get_ydata()) == [value]
  assert 'best epoch: 1, validation 37.50%' in lines


def test_a_detector_s_legend_names_every_line(tmp_path, drawn):
  train = {'kind': 'train', 'epoch': 0.5, 'loss': 2.0, 'positives': 9.0}
  train['learning_rate'] = 1e-3
  epoch = {'kind': 'epoch', 'epoch': 1, 'train_loss': 1.5}
  epoch |= {'val_ap': 0.25, 'val_ap50': 0.5, 'val_mask_ap': 0.125}
  plots.draw_curves(
      tmp_path, [train, epoch], Terminal(), {'best': {'test_mask_ap': 0.5}}
  )
  legend = drawn[0].axes[-1].get_legend()
  assert {text.get_text() for text in legend.get_texts()} == {
      'train, per interval',
      'train (augmented), loss',
      'validation, box AP',
      'validation, box AP50',
      'validation, mask AP',
      'best epoch: 1, validation 12.50%',
      'mask AP, test at the best epoch: 50.00%',
  }


def test_a_score_of_ones_own_is_drawn_and_does_not_decide(
    tmp_path, drawn, monkeypatch
):
  new = scores.Score('balanced accuracy', '.2%', shown=True)
  other = scores.Score('boundary distance (pixels)', '.2f', shown=True)
  own = {'balanced': new, 'distance': other}
  monkeypatch.setattr(scores, 'SCORES', own | scores.SCORES)
  own = {'val_balanced': 0.875, 'val_distance': 3.5}
  entries = [ENTRIES[0], {**ENTRIES[1], **own}]
  plots.draw_curves(tmp_path, entries, Terminal())
  lines = {line.get_label(): line for line in drawn[0].axes[1].get_lines()}
  assert not any('distance' in label for label in lines)  # no percentage
  assert list(lines['validation, balanced accuracy'].get_ydata()) == [87.5]
  assert list(lines['validation, accuracy'].get_ydata()) == [75]
  assert 'best epoch: 1, validation 75.00%' in lines
  axis = drawn[0].axes[1].get_ylabel()
  assert axis == 'balanced accuracy, accuracy (%)'


@pytest.fixture
def plot_of(tmp_path):
  """Plots a batch of images of one grey, before and after augmentation."""

  def plot_of(classes, before, after, shape, target):
    info = datasets.Info('x', classes, (0.5,) * 3, (0.25,) * 3, shape[1:])
    batch = {'image': np.full((*shape, 3), before, np.uint8)}
    image = np.full((*shape, 3), (after / 255 - 0.5) / 0.25, np.float32)
    path = tmp_path / 'batch.png'
    plots.write_augmented_batch(path, batch, (image, target), info)
    return np.asarray(Image.open(path).convert('RGB'))

  return plot_of


def test_labels_of_pixels_are_drawn_over_the_augmented_batch(plot_of):
  """Labelled pixels blend the class colour (128, 0, 0) with a grey of 100."""
  label = np.tile(np.int32([0] * 48 + [255] * 48), (2, 96, 1))
  drawn = plot_of(('road', 'sky'), 204, 100, (2, 96, 96), label)
  for color in ((114, 50, 50), (100, 100, 100)):
    pixels = (drawn == color).all(-1).sum()
    assert 0 <= pixels - 2 * 96 * 48 < 100


def test_the_augmented_batch_is_drawn_as_it_was_and_became(plot_of):
  """Images of a uniform grey become darker."""
  targets = np.tile(np.float32([0.9, 0.1, 0.0]), (3, 1))
  drawn = plot_of(('cat', 'dog', 'hen'), 204, 51, (3, 16, 24), targets)
  for grey in (204, 51):
    pixels = (drawn == grey).all(-1).sum()
    # Anti-aliased text adds a few pixels.
    assert 0 <= pixels - 3 * (16 * 6) * (24 * 6) < 100


def test_the_names_of_classes_have_the_colours_of_their_boxes(plot_of):
  """Two objects of class 1 and one of class 0; the fourth row is unused."""
  boxes = np.float32(
      [[[9, 9, 30, 30], [40, 9, 60, 50], [9, 50, 30, 80], [70, 9, 90, 60]]]
  )
  truth = assignment.Truth(
      boxes, np.int32([[1, 0, 1, 2]]), np.bool_([[1, 1, 1, 0]])
  )
  classes, target = ('cat', 'dog', 'hen'), {'truth': truth}
  drawn = plot_of(classes, 255, 255, (1, 96, 120), target)
  legend = drawn[200:, 80:]  # below both images
  for line, (color, outlined) in enumerate(
      [((0, 128, 0), 2 * 20 + 2 * 20 + 2 * 20 + 2 * 30), ((128, 0, 0), 120)]
  ):
    square = (legend[16 * line : 16 * line + 16] == color).all(-1)
    assert 80 < square.sum() < 120 and square.sum() == square[:, :14].sum()
    everywhere = (drawn == color).all(-1).sum() - square.sum()
    assert everywhere == pytest.approx(outlined, abs=10)
  assert not (drawn == (128, 128, 0)).all(-1).any()


def _pictures(count, h=30, w=40):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (count, h, w, 3), dtype=np.uint8)


def test_pictures_show_each_image_above_its_augmented_one(
    tmp_path, monkeypatch
):
  """Scaled by ceil(96 / 30) = 4; cells are 164 by 2 * 124 + 36 pixels."""
  before, after = _pictures(3), 255 - _pictures(3)
  path = tmp_path / 'pairs.png'
  titles = ['a', 'two\nlines', 'long ' * 60]
  monkeypatch.setattr(plots, '_COLUMNS', 2)
  plots.write_before_after(path, before, after, titles)
  grid = np.asarray(Image.open(path))
  assert grid.shape == (2 * 284, 80 + 2 * 164, 3)
  for i in range(3):
    top, left = 284 * (i // 2), 80 + 164 * (i % 2) + 2
    for offset, images in ((2, before), (126, after)):
      shown = grid[top + offset :, left:][:120:4, :160:4]
      np.testing.assert_array_equal(shown, images[i])
    assert (grid[top + 248 : top + 264, left : left + 160] < 128).any()
  assert (grid[284:, 244:] == 255).all()  # fourth cell: no title overflows
  assert (grid[266:282, 246:] < 128).any()  # its title's second line
  for row in range(2):  # loaded, augmented, target
    margin = grid[284 * row :, :80]
    for middle in (62, 186, 256):
      assert (margin[middle - 10 : middle + 10] < 128).any()
      assert (margin[middle + 20 : middle + 28] == 255).all()
  monkeypatch.undo()
  plots.write_before_after(path, before, after, titles)
  assert np.asarray(Image.open(path)).shape == (284, 80 + 3 * 164, 3)


def test_denormalize_undoes_normalize():
  images = _pictures(2)
  pixels = augment_lib.normalize(jnp.asarray(images), MEAN, STD)
  np.testing.assert_array_equal(
      plots.denormalize(np.asarray(pixels), MEAN, STD), images
  )
  wild = np.array([[[[-9.0, 9.0, 0.0]]]])
  np.testing.assert_array_equal(
      plots.denormalize(wild, MEAN, STD), [[[[0, 255, 76]]]]
  )


@pytest.mark.parametrize(
    ('target', 'said'),
    [
        ([0.1, 0.2, 0.7], 'hen: 0.70\ndog: 0.20'),
        ([0.9, 0.05, 0.05], 'cat: 0.90'),
        ([1.0], 'cat: 1.00'),
    ],
)
def test_describe_names_the_heaviest_classes(target, said):
  assert plots.describe(np.array(target), ('cat', 'dog', 'hen')) == said


def test_masks_are_drawn_in_the_frames_that_they_fill(plot_of):
  """The left half of a frame of 40 x 20 pixels, half white and half green."""
  bitmap = np.zeros((1, 1, 8, 8), np.uint8)
  bitmap[..., :4] = 1
  truth = assignment.Truth(
      np.float32([[[10, 30, 30, 50]]]),
      np.int32([[1]]),
      np.bool_([[1]]),
      bitmap,
      np.float32([[[10, 30, 50, 50]]]),
  )
  target = {'truth': truth}
  drawn = plot_of(('cat', 'dog'), 255, 255, (1, 96, 120), target)
  covered = (drawn == (128, 192, 128)).all(-1)
  assert covered.sum() == 20 * 20 - 4 * 19  # without the outline of the box
