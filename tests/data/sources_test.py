"""Tests that a source of one's own needs a length and records, no more."""

import functools

import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.data import (
    batches,
    datasets,
    decoded_cache,
    detection,
    pictures,
    records,
    resizing,
    segmentation,
    sources,
)
from gswinrmt_jax.errors import UserError

_OBJECTS = detection.from_masks([(1, np.tri(12, 16, dtype=bool))])
_LABELS = (3, np.tri(12, 16, dtype=np.uint8), _OBJECTS)


class _Own(sources.Source):
  """Grey images of 16 x 12 pixels, all with one label."""

  def __init__(self, label, count=6):
    self.label, self.count = label, count

  def __len__(self):
    return self.count

  def __getitem__(self, row):
    return PIL.Image.new('RGB', (16, 12), (row, row, row)), self.label


@pytest.mark.parametrize(
    ('label', 'of', 'names'),
    [
        (_LABELS[0], records.Images, {'label'}),
        (
            _LABELS[1],
            lambda own: segmentation.SegmentedImages(
                own, training=segmentation.Crop((8, 8))
            ),
            {'label', 'extents'},
        ),
        (
            _LABELS[2],
            lambda own: detection.AnnotatedImages(
                own, training=detection.Training()
            ),
            {'boxes', 'labels', 'valid', 'extents'},
        ),
    ],
)
def test_a_source_of_ones_own_gives_batches(label, of, names):
  stream = batches.train_batches(of(_Own(label)), batch_size=3, seed=0)
  found = [next(stream) for _ in range(2)]
  stream.close()
  assert found[0].keys() == {'image', 'row'} | names
  rows = np.concatenate([batch['row'] for batch in found])
  assert sorted(rows) == [*range(6)]
  grey = np.concatenate([batch['image'] for batch in found])[:, 0, 0, 0]
  np.testing.assert_array_equal(grey, rows)


def test_evaluation_knows_sizes_and_labels():
  whole = segmentation.SegmentedImages(_Own(_LABELS[1]))
  assert whole.image_shape == (32, 32, 3)
  assert segmentation.has_labels(whole.source)
  assert not segmentation.has_labels(_Own(np.full((12, 16), 255, np.uint8)))
  assert detection.has_objects(_Own(_OBJECTS).described())
  for of in (whole, detection.AnnotatedImages(_Own(_OBJECTS))):
    (batch,) = batches.eval_batches(of, batch_size=8)
    assert batch['mask'].tolist() == [1] * 6 + [0] * 2


def test_records_are_identified_and_cached(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  for label, other in zip(_LABELS, (4, 1 - _LABELS[1], None), strict=True):
    own, changed = _Own(label), _Own(other)
    assert own.content_checksum() != changed.content_checksum()
    assert own.order_checksum() != _Own(label, 5).order_checksum()
    assert own.fingerprint() == _Own(label).fingerprint()
  cached = decoded_cache.load(records.Images(_Own(3)))
  np.testing.assert_array_equal(cached.image[:, 0, 0, 0], range(6))
  assert cached.label.tolist() == [3] * 6 and any(tmp_path.rglob('image.npy'))


@pytest.mark.parametrize(
    ('label', 'of'),
    [
        (_LABELS[0], records.Images),
        (np.full((12, 16), 3, np.int32), segmentation.SegmentedImages),
        (_OBJECTS._replace(labels=np.int32([3])), detection.AnnotatedImages),
    ],
)
def test_a_label_that_is_no_class_is_refused(label, of):
  of(_Own(label), num_classes=4).read(2)
  with pytest.raises(UserError, match='has the label 3: classes are 0 to 2'):
    of(_Own(label), num_classes=3).read(2)


@pytest.mark.parametrize('label', [300, -1])
def test_a_label_of_a_pixel_is_checked_before_it_becomes_a_byte(label):
  own = _Own(np.full((12, 16), label, np.int32))
  with pytest.raises(UserError, match=f'has the label {label}: classes are 0'):
    segmentation.SegmentedImages(own, num_classes=50).read(0)
  void = _Own(np.full((12, 16), pictures.VOID, np.int32))
  segmentation.SegmentedImages(void, num_classes=50).read(0)


@pytest.mark.parametrize('mode', ['L', 'HSV'])
@pytest.mark.parametrize(
    ('label', 'of'),
    [
        (_LABELS[0], records.Images),
        (_LABELS[1], segmentation.SegmentedImages),
        (_LABELS[2], detection.AnnotatedImages),
    ],
)
def test_an_image_that_is_not_rgb_is_refused(label, of, mode):
  class Other(_Own):

    def __getitem__(self, row):
      image, label = super().__getitem__(row)
      return image.convert(mode), label

  with pytest.raises(UserError, match=f'record 5 has the mode {mode}: its so'):
    of(Other(label)).read(5)


@pytest.mark.parametrize('storage', ['memory', 'disk'])
def test_random_crops_are_not_decoded_once(storage):
  training = resizing.RandomCrop()
  with pytest.raises(ValueError, match=f'{storage}.*: random crops need'):
    datasets.load('digits', 'val', training=training, storage=storage)


def test_a_data_set_with_code_of_its_own_has_its_directory_and_cache(
    tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  asked = []

  def opened(split, data_dir):
    asked.append((split, data_dir))
    return _Own(3)

  row = datasets._BUILT_IN['digits']._replace(open=opened)
  monkeypatch.setitem(datasets._BUILT_IN, 'mine', row)
  load = functools.partial(datasets.load, 'mine', 'val', '/there')
  assert load(storage='decode').num_classes == 10
  assert isinstance(load(storage='disk'), decoded_cache.Cached)
  assert asked == [('val', '/there')] * 2
