"""Tests segmenters in training, resuming, evaluation and prediction."""

import errno
import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
import several
import tiny_dense
import tiny_segments

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.commands import main as commands
from gswinrmt_jax.data import label_colors, pictures
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.deploy import load, segmentation_map, segmenter
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import augmentation
from gswinrmt_jax.train import data as data_lib
from gswinrmt_jax.weights import load as weights_lib


@pytest.fixture(name='runs', scope='module')
def _runs(launcher, tmp_path_factory):
  """Returns a killed and resumed run, an unbroken one, and its output."""
  folder = tmp_path_factory.mktemp('segmenters')
  return tiny_dense.killed_and_unbroken(launcher, folder, 'tiny_segments')


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
  tiny_segments.install(monkeypatch)


def test_a_killed_run_resumes_bit_for_bit(runs):
  tiny_dense.check_equal(*runs[:2])


def test_the_best_epoch_has_the_highest_mean_iou(runs):
  _, run, said = runs
  entries = metrics_log.read_metrics(run)
  epochs = [entry for entry in entries if entry['kind'] == 'epoch']
  best = max(epochs, key=lambda entry: (entry['val_mean_iou'], entry['epoch']))
  summary = json.loads((run / 'summary.json').read_text())
  assert summary['best']['epoch'] == best['epoch']
  assert summary['best']['val_mean_iou'] == best['val_mean_iou'] > 0.3
  names = {'mean_iou', 'pixel_accuracy', 'loss'}
  assert {f'val_{name}' for name in names} <= epochs[0].keys()
  assert {f'test_{name}' for name in names} <= summary['last'].keys()
  best = summary['best']
  assert np.mean(best['test_class_iou']) == pytest.approx(best['test_mean_iou'])
  assert 'train_pixel_accuracy' in epochs[0] and 'val_accuracy' not in epochs[0]
  found = f'mean IoU {epochs[0]["val_mean_iou"]:.2%}, pixel accuracy'
  assert found in said and '\nvalidation mean IoU' in said
  assert (run / 'augmented_batch.png').exists()


def _by_hand(run):
  """Returns the confusion matrix and the loss, computed image by image."""
  weights = weights_lib.load(run, step='latest')
  confusion, losses = np.zeros((3, 3), int), []
  source = tiny_segments.SPLITS['val']
  for image, label in zip(source.images, source.masks, strict=True):
    logits = _logits(weights, image)
    log_share = np.asarray(jax.nn.log_softmax(logits))
    for y, x in zip(*np.nonzero(label != 255), strict=True):
      confusion[label[y, x], logits[y, x].argmax()] += 1
      losses.append(-log_share[y, x, label[y, x]])
  return confusion, np.mean(losses)


def _logits(weights, image):
  """Returns the logits of an image without padding."""
  card = weights.card
  image = jnp.asarray(image[None])
  image = augment_lib.normalize(image, card.mean, card.std)
  apply = jax.jit(
      functools.partial(weights.card.make_model().apply, train=False)
  )
  (logits,) = apply(weights.variables, image)
  return np.asarray(logits)


def test_every_pixel_counts_once_on_any_number_of_devices(runs, tmp_path):
  """Seven padded images of several sizes, in batches of three and of eight."""
  run = runs[1]
  on_eight = several.start(
      'tiny_segments.py', run, tmp_path / '8.json', devices=8
  )
  assert tiny_dense.evaluate(run, tmp_path / '1.json') == 0
  several.said(on_eight)
  confusion, loss = _by_hand(run)
  right = np.diag(confusion)
  iou = right / (confusion.sum(0) + confusion.sum(1) - right)
  for name in ('1.json', '8.json'):
    report = json.loads((tmp_path / name).read_text())
    assert report['images'] == 7
    assert report['confusion'] == confusion.tolist()
    assert report['class_iou'] == pytest.approx(iou.tolist())
    assert report['mean_iou'] == pytest.approx(iou.mean())
    assert report['pixel_accuracy'] == right.sum() / confusion.sum()
    assert report['loss'] == pytest.approx(loss, rel=1e-5)


def test_scores_are_those_of_the_stored_pixels(runs, tmp_path):
  """Images are resized for the model; the logits are resized back."""
  run, out = runs[1], tmp_path / 'small.json'
  assert tiny_dense.evaluate(run, out, '--image-size=8') == 0
  report = json.loads(out.read_text())
  loaded = load.load_model(run, image_size=8, step='latest')
  confusion, source = np.zeros((3, 3), int), tiny_segments.SPLITS['val']
  for image, label in zip(source.images, source.masks, strict=True):
    known, found = label != 255, loaded.predict(image).label
    np.add.at(confusion, (label[known], found[known]), 1)
  assert report['confusion'] == confusion.tolist()
  assert confusion.sum() == sum((m != 255).sum() for m in source.masks)


def test_a_segmentation_map_is_of_the_bare_image(runs):
  run, image = runs[1], tiny_segments.SPLITS['val'].images[0]
  loaded = load.load_model(run)
  found = loaded.predict(image)
  weights = weights_lib.load(run)
  np.testing.assert_array_equal(found.label, _logits(weights, image).argmax(-1))
  shares = dict(found.shares())
  assert list(shares.values()) == sorted(shares.values(), reverse=True)
  assert shares[0] == (found.label == 0).mean()
  compiled = segmenter._classify._cache_size()
  others = loaded.predict(tiny_segments.SPLITS['val'].images[1:])
  assert len({other.label.shape for other in others}) > 1
  assert segmenter._classify._cache_size() == compiled
  smaller = load.load_model(run, image_size=8).predict([image])[0]
  assert smaller.label.shape == image.shape[:2]
  assert (smaller.label == found.label).mean() > 0.5
  for size in ((8, 8), [8, 8], 0, -5, 8.5):
    with pytest.raises(
        ValueError, match='must be one number, the shorter side'
    ):
      load.load_model(run, image_size=size)


def test_the_command_writes_overlay_and_labels(runs, tmp_path, capsys):
  image, path = tiny_segments.SPLITS['val'].images[0], tmp_path / 'a.png'
  PIL.Image.fromarray(image).save(path)
  out = tmp_path / 'out'
  argv = ['predict', str(runs[1]), str(path), f'--out={out}']
  assert commands.main(argv) == 0
  printed = capsys.readouterr().out
  assert commands.main([*argv, '--json']) == 0
  (report,) = json.loads(capsys.readouterr().out)
  assert sum(one['share'] for one in report['classes']) == pytest.approx(1)
  assert report['written'] == [f'{out}/a_overlay.png', f'{out}/a_labels.png']
  first = report['classes'][0]
  assert f'{first["share"]:7.2%}  {first["name"]}' in printed
  encoded = (out / 'a_labels.png').read_bytes()
  label = pictures.open_label(encoded, pictures.LabelCoding(3))
  shares = np.bincount(label.ravel(), minlength=3) / label.size
  assert shares[first['label']] == first['share']
  overlay = np.asarray(PIL.Image.open(out / 'a_overlay.png'))
  height, width, _ = image.shape
  covered = label_colors.overlay(image, label, 3)
  np.testing.assert_array_equal(overlay[:height, :width], covered)
  color = label_colors.palette(3)[first['label']]
  assert (overlay[:, width:] == color).all(-1).sum() >= 100  # in the legend


def test_a_damaged_image_changes_no_name(runs, tmp_path, capsys):
  for folder in 'ab':
    (tmp_path / 'in' / folder).mkdir(parents=True)
  (tmp_path / 'in/a/x.png').write_text('damaged')
  image = tiny_segments.SPLITS['val'].images[0]
  PIL.Image.fromarray(image).save(tmp_path / 'in/b/x.png')
  argv = ['predict', str(runs[1]), f'{tmp_path}/in', f'--out={tmp_path}/out']
  assert commands.main(argv) == 1
  assert 'a/x.png is not an image' in capsys.readouterr().err
  names = sorted(path.name for path in (tmp_path / 'out').iterdir())
  assert names == ['x_2_labels.png', 'x_2_overlay.png']


def test_a_picture_that_cannot_be_written_loses_no_results(
    runs, tmp_path, monkeypatch, capsys
):
  write = segmentation_map.SegmentationMap.write

  def full(found, path):
    if path.name == 'b':
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(found, path)

  monkeypatch.setattr(segmentation_map.SegmentationMap, 'write', full)
  (tmp_path / 'in').mkdir()
  image = PIL.Image.fromarray(tiny_segments.SPLITS['val'].images[0])
  long = 'c' * 238  # with `_overlay.png`, 250 of at most 255
  for name in ('a', 'b', long):
    image.save(tmp_path / 'in' / f'{name}.png')
  argv = ['predict', str(runs[1]), f'{tmp_path}/in', f'--out={tmp_path}/out']
  assert commands.main([*argv, '--json']) == 1
  printed = capsys.readouterr()
  assert 'b.png: not drawn: No space left on device' in printed.err
  written = [one['written'] for one in json.loads(printed.out)]
  assert [len(names) for names in written] == [2, 0, 2]


def test_where_the_images_go_is_checked_first(
    runs, tmp_path, monkeypatch, capsys
):
  (tmp_path / 'file').touch()
  monkeypatch.delattr(segmenter.LoadedSegmenter, 'predict')
  out = f'--out={tmp_path}'
  argv = ['predict', str(runs[1]), 'a.png', f'{out}/file']
  assert commands.main(argv) == 2
  assert 'file/image.png: a file is in the way' in capsys.readouterr().err
  for name in ('a.png', 'a_labels.png'):  # the user's own labels, say
    (tmp_path / name).touch()
  assert commands.main(['predict', str(runs[1]), str(tmp_path), out]) == 2
  said = f'{tmp_path}/a_labels.png is there already, beside the images'
  assert said in capsys.readouterr().err


def test_a_segmentation_map_replaces_its_files_whole(tmp_path, monkeypatch):
  pixels, label = np.zeros((4, 5, 3), np.uint8), np.ones((4, 5), np.uint8)
  found = segmentation_map.SegmentationMap(
      'a.png', pixels, label, ('road', 'tree')
  )
  found.write(tmp_path / 'a')
  names = ['a_labels.png', 'a_overlay.png']
  before = {name: (tmp_path / name).read_bytes() for name in names}
  assert sorted(path.name for path in tmp_path.iterdir()) == names

  def fails(image, file, *args, **how):
    pathlib.Path(file).write_bytes(b'half')
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(PIL.Image.Image, 'save', fails)
  with pytest.raises(OSError, match='No space'):
    found.write(tmp_path / 'a')
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_colours_are_pascal_vocs():
  colors = label_colors.palette(21).tolist()
  assert colors[:4] == [[128, 0, 0], [0, 128, 0], [128, 128, 0], [0, 0, 128]]
  assert colors[7] == [64, 0, 0] and len({*map(tuple, colors)}) == 21
  image = np.full((1, 2, 3), 101, np.uint8)
  covered = label_colors.overlay(image, np.array([[0, 255]]), 21)
  assert covered.tolist() == [[[115, 51, 51], [101, 101, 101]]]


def test_padding_of_crops_is_zero_whatever_the_distortion():
  config, info = tiny_segments.recipe(), tiny_segments.INFO
  augment = augmentation.from_config(config, info, None, None)
  batch = {
      'image': jnp.full((8, 4, 5, 3), 200, jnp.uint8),
      'label': jnp.full((8, 4, 5), 255, jnp.uint8),  # also inside the image
      'extents': jnp.tile(jnp.array([[3, 2]]), (8, 1)),
  }
  image, _ = jax.jit(augment)(jax.random.key(0), batch, 0)
  assert not image[:, 3:].any() and not image[:, :, 2:].any()
  assert (jnp.abs(image[:, :3, :2]) > 0).all()
  assert jnp.ptp(image[:, 0, 0], axis=0).min() > 0.1  # distorted


def test_training_sees_the_normalisation_of_the_data():
  config, info = tiny_segments.recipe(), tiny_segments.INFO
  config.augment.photometric = False
  augment = augmentation.from_config(config, info, None, None)
  pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
  batch = {
      'image': jnp.asarray(pixels),
      'label': jnp.zeros((2, 4, 5), jnp.uint8),
      'extents': jnp.array([[4, 5]] * 2),
  }
  image, _ = augment(jax.random.key(0), batch, 0)
  want = (pixels / 255 - np.array(info.mean)) / np.array(info.std)
  np.testing.assert_allclose(image, want, rtol=1e-5, atol=1e-6)


def test_the_test_split_is_not_read_before_the_end(monkeypatch):
  """But for the first label, which shows that there are labels."""
  config = data_lib.with_own_splits(tiny_segments.recipe())
  test = tiny_segments.SPLITS['test']
  records = data_lib.load_train(config), data_lib.load_eval(config, 'val')
  read, item = [], type(test).__getitem__
  monkeypatch.setattr(
      type(test),
      '__getitem__',
      lambda source, row: read.append((source, row)) or item(source, row),
  )
  data_lib._check_data(config, *records, data_lib._open_splits(config))
  assert [row for source, row in read if source is test] == [0]


@pytest.mark.parametrize('split', ['train', 'val', 'test'])
def test_a_split_without_labels_is_refused_before_training(split, monkeypatch):
  config = data_lib.with_own_splits(tiny_segments.recipe())
  records = data_lib.load_train(config), data_lib.load_eval(config, 'val')
  source = tiny_segments.SPLITS[split]
  bare = [np.full_like(label, 255) for label in source.masks]
  bare[-1][-1, -1] = 2
  monkeypatch.setattr(source, 'masks', bare)
  data_lib._check_data(
      config, *records, data_lib._open_splits(config)
  )  # One pixel is enough.
  bare[-1][-1, -1] = 255
  said = f"config.data.{split}_split: no pixel of '{split}' has a class"
  with pytest.raises(UserError, match=said):
    data_lib._check_data(config, *records, data_lib._open_splits(config))


def test_evaluation_without_labels_is_refused_first(runs, monkeypatch):
  source = tiny_segments.SPLITS['test']
  bare = [np.full_like(label, 255) for label in source.masks]
  monkeypatch.setattr(source, 'masks', bare)
  monkeypatch.setattr(evaluate_run, '_scores', lambda *args: pytest.fail())
  with pytest.raises(UserError, match=r'no pixel of .* test has a class'):
    evaluate_run.evaluate_run(runs[1])


def test_a_run_of_another_task_is_refused(monkeypatch, capsys):
  monkeypatch.undo()
  argv = ['train', '--config=camvid:smoke', '--config.data.name=digits']
  assert commands.main([*argv, '--workdir=x']) == 2
  assert 'digits is a data set for classification' in capsys.readouterr().err
  # Before CIFAR-10 would be downloaded.
  monkeypatch.setattr(cifar10, 'prepare', lambda folder: pytest.fail())
  argv = ['train', '--config=camvid:smoke', '--config.data.name=cifar10']
  assert commands.main([*argv, '--config.data.dir=x', '--workdir=x']) == 2
  assert 'cifar10 is a data set for classification' in capsys.readouterr().err
  argv = ['train', '--config=digits_rmt', '--config.data.name=digit_masks']
  assert commands.main([*argv, '--workdir=x']) == 2
  assert 'is a data set for segmentation' in capsys.readouterr().err
  assert not pathlib.Path('x').exists()
