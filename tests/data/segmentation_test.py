"""Tests crops and whole images for segmentation, and reading label images."""

import io

import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.data import batches, pictures, resizing, segmentation, sources
from gswinrmt_jax.data.pictures import LabelCoding, VOID
from gswinrmt_jax.data.segmentation import Crop
from gswinrmt_jax.errors import UserError


class _Source(sources.Source):
  """A source of records in memory."""

  def __init__(self, pairs):
    self.pairs = pairs

  def __len__(self):
    return len(self.pairs)

  def __getitem__(self, row):
    image, label = self.pairs[row]
    return PIL.Image.fromarray(image), label


def _noise(*sizes, classes=4):
  rng = np.random.default_rng(0)
  return _Source(
      [
          (
              rng.integers(0, 256, (height, width, 3), np.uint8),
              rng.integers(0, classes, (height, width), np.uint8),
          )
          for width, height in sizes
      ]
  )


def _ramp(axis):
  """Returns an image of grey levels 2 x (or 2 y), and its label x (or y)."""
  place = np.broadcast_to(np.arange(120, dtype=np.uint8), (120, 120))
  label = place if axis == 1 else place.T
  return PIL.Image.fromarray(np.repeat(2 * label[..., None], 3, 2)), label


def _agrees(image, label):
  """Checks that a pixel centred at c has level 2 (c - 1/2) and class [c]."""
  centre = np.float64(image[..., 0]) / 2 + 0.5
  inner = (4 < centre) & (centre < 115)  # Borders are not linear.
  off = (label + 0.5 - centre)[inner]
  assert off.size > 400
  assert np.abs(off).max() < 0.8  # 1/2, and rounding of the grey level
  assert abs(off.mean()) < 0.15  # A pixel's misalignment gives 1/2 or more.


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('side', [77, 120, 211])
def test_label_follows_the_image_through_resizing(axis, side):
  image, label = _ramp(axis)
  # The other side differs, so that swapping width and height would show.
  size = (side, 97) if axis else (97, side)
  got = segmentation.resize_label(label, size)
  assert got.shape == size[::-1]
  _agrees(resizing.resize(image, size), got)


@pytest.mark.parametrize('vertical', [False, True])
@pytest.mark.parametrize('axis', [0, 1])
def test_label_follows_the_image_through_crops_and_flips(axis, vertical):
  image, label = _ramp(axis)
  crop = Crop((60, 70), max_class_share=1, flip_vertical=vertical)
  rises = []
  for seed in range(8):
    rng = np.random.default_rng(seed)
    got = segmentation.random_crop(image, label, None, crop, rng)
    _agrees(*got)
    rises.append(float(got[1][-1, -1]) > float(got[1][0, 0]))
  # By default, some crops are flipped horizontally, none vertically.
  assert 0 < sum(rises) < 8 if axis or vertical else all(rises)


def test_a_part_is_that_of_the_whole():
  ((image, _),) = _noise((50, 40)).pairs
  image = PIL.Image.fromarray(image)
  whole = resizing.resize(image, (83, 33))
  part = resizing.resize(image, (83, 33), (20, 5, 61, 33))
  assert np.abs(np.int32(part) - whole[5:33, 20:61]).max() <= 1


def test_labels_are_never_interpolated():
  label = np.uint8([[0, 200], [200, VOID]])
  for size in ((7, 5), (3, 3), (1, 2), (2, 2)):
    got = segmentation.resize_label(label, size)
    assert set(np.unique(got)) <= {0, 200, VOID}
  np.testing.assert_array_equal(
      segmentation.resize_label(label, (4, 2)),
      [[0, 0, 200, 200], [200, 200, VOID, VOID]],
  )


@pytest.mark.parametrize(
    'size, within, factor, want',
    [
        ((480, 360), None, 1, (480, 360)),
        ((480, 360), None, 0.5, (240, 180)),
        ((480, 360), (240, 180), 1, (240, 180)),
        ((683, 512), (2048, 512), 1, (683, 512)),
        ((512, 683), (2048, 512), 2, (1024, 1366)),
        ((3000, 300), (2048, 512), 1, (2048, 205)),  # the long side limits
        ((1000, 300), (2048, 512), 0.75, (1280, 384)),
        ((5, 3), None, 0.5, (3, 2)),  # halves are rounded up
        ((900, 1), None, 0.3, (270, 1)),  # at least one pixel
        ((1000, 500), (101, 51), 0.55, (55, 28)),  # bounds are rounded down
    ],
)
def test_sizes(size, within, factor, want):
  assert resizing.size_within(size, within, factor) == want


def test_shares_are_of_the_pixels_that_have_a_class():
  label = np.uint8([0] * 10 + [7] * 30 + [VOID] * 500)
  assert segmentation.largest_share(label) == 0.75
  assert segmentation.largest_share(label[40:]) == 1


def _shares(label, crop, count=150):
  image = PIL.Image.new('RGB', label.shape[::-1])
  rng = np.random.default_rng(0)
  return np.array(
      [
          segmentation.largest_share(
              segmentation.random_crop(image, label, None, crop, rng)[1]
          )
          for _ in range(count)
      ]
  )


def test_a_class_stays_below_its_share_of_a_crop():
  columns = np.r_[np.zeros(48), np.tile([1, 2, 3, 4], 12)].astype(np.uint8)
  label = np.broadcast_to(columns, (24, 96))
  scale = (1, 1)
  free = _shares(label, Crop((24, 24), scale, max_class_share=1))
  # At 31 of 73 positions, 18 or more of 24 columns are in the first half.
  assert 0.3 < (free >= 0.75).mean() < 0.55
  assert (_shares(label, Crop((24, 24), scale)) < 0.75).all()
  # If void pixels counted, no class would ever fill half of a crop.
  void = np.where((columns == 0) & (np.arange(96) % 5 > 0), VOID, columns)
  void = np.broadcast_to(void.astype(np.uint8), (24, 96))
  assert (_shares(void, Crop((24, 24), scale)) < 0.75).all()


def test_after_ten_crops_of_one_class_the_next_is_taken(monkeypatch):
  drawn = []
  draw_box = segmentation._draw_box
  monkeypatch.setattr(
      segmentation,
      '_draw_box',
      lambda *a: drawn.append(draw_box(*a)) or drawn[-1],
  )
  label = np.zeros((20, 500), np.uint8)
  assert _shares(label, Crop((8, 8), (1, 1)), count=1) == 1
  assert len(drawn) == 11


def test_scales_places_and_flips_cover_their_range():
  place = np.arange(100, dtype=np.uint8)
  label = np.broadcast_to(place, (100, 100))
  image = PIL.Image.new('RGB', (100, 100))
  rng = np.random.default_rng(0)
  crop = Crop((30, 30), (1, 1), max_class_share=1)
  starts = np.array(
      [
          segmentation.random_crop(image, label, None, crop, rng)[1][0, 0]
          for _ in range(400)
      ]
  )
  assert starts.min() == 0 and starts.max() == 99  # 99 if flipped
  # Numbers of rows, and a mirror image half of the time.
  tops, flips = set(), 0
  for _ in range(400):
    _, rows = segmentation.random_crop(image, label.T, None, crop, rng)
    tops.add(int(rows[0, 0]))
    _, columns = segmentation.random_crop(image, label, None, crop, rng)
    flips += columns[0, 0] > columns[0, -1]
  assert min(tops) == 0 and max(tops) == 70 and 160 < flips < 240
  crop = Crop((8, 8), (0.5, 2), max_class_share=1, flip=False)
  steps = [
      np.ptp(segmentation.random_crop(image, label, None, crop, rng)[1][0]) / 7
      for _ in range(200)
  ]
  assert 0.4 < min(steps) < 0.7 and 1.8 < max(steps) < 2.2


def test_a_small_image_is_padded_with_pixels_of_no_class():
  records = segmentation.SegmentedImages(
      _noise((30, 20)), training=Crop((40, 50), (1, 1), flip=False)
  )
  assert records.image_shape == (40, 50, 3)
  record = records.read(0, np.random.default_rng(0))
  image, label = record['image'], record['label']
  np.testing.assert_array_equal(image[:20, :30], records.source.pairs[0][0])
  np.testing.assert_array_equal(label[:20, :30], records.source.pairs[0][1])
  assert (label[20:] == VOID).all() and (label[:, 30:] == VOID).all()
  assert not image[20:].any() and not image[:, 30:].any()
  assert record['extents'].tolist() == [20, 30]


def test_a_label_of_another_size_is_refused():
  source = _noise((30, 40))
  ((image, label),) = source.pairs
  source.pairs = [(image, label.T)]
  for training in (None, Crop((64, 64), (1, 1), flip=False)):
    records = segmentation.SegmentedImages(source, training=training)
    with pytest.raises(UserError, match=r'\(30, 40\): must be \(40, 30\),'):
      records.read(0, np.random.default_rng(0))


def test_a_crop_is_of_the_image_within_its_bounds():
  records = segmentation.SegmentedImages(
      _noise((80, 40)), (40, 20), Crop((64, 64), (1, 1), flip=False)
  )
  record = records.read(0, np.random.default_rng(0))
  assert record['extents'].tolist() == [20, 40]


def test_whole_images_are_padded_to_one_shape():
  records = segmentation.SegmentedImages(_noise((30, 40), (65, 20), (10, 33)))
  assert records.image_shape == (64, 96, 3)
  first, last = batches.eval_batches(records, batch_size=2)
  assert first['extents'].tolist() == [[40, 30], [20, 65]]
  assert first['extents'].dtype == np.int32
  for index, (image, label) in enumerate(records.source.pairs[:2]):
    down, across = label.shape
    got = first['image'][index], first['label'][index]
    np.testing.assert_array_equal(got[0][:down, :across], image)
    np.testing.assert_array_equal(got[1][:down, :across], label)
    assert (got[1][down:] == VOID).all() and (got[1][:, across:] == VOID).all()
  assert last['mask'].tolist() == [1, 0]
  assert last['extents'].tolist() == [[33, 10]] * 2


def test_images_of_one_size_are_not_padded():
  records = segmentation.SegmentedImages(_noise((33, 40), (33, 40)))
  assert records.image_shape == (40, 33, 3)


def test_images_of_one_size_are_padded_to_the_least_side():
  records = segmentation.SegmentedImages(_noise((80, 40), (80, 40)), (50, 20))
  assert records.image_shape == (32, 40, 3)
  record = records.read(0)
  assert record['extents'].tolist() == [20, 40]
  assert not record['image'][20:].any()


def test_evaluation_within_a_size_keeps_the_labels():
  records = segmentation.SegmentedImages(_noise((80, 40), (30, 60)), (50, 20))
  assert records.image_shape == (64, 64, 3) and records.label_shape == (64, 96)
  (batch,) = batches.eval_batches(records, batch_size=3)
  assert batch['extents'].tolist() == [[20, 40], [40, 20], [40, 20]]
  assert batch['label_extents'].tolist() == [[40, 80], [60, 30], [60, 30]]
  want = np.full((64, 96), VOID)
  want[:60, :30] = records.source.pairs[1][1]
  np.testing.assert_array_equal(batch['label'][1], want)


def _png(values, kind='PNG', palette=False):
  image, file = PIL.Image.fromarray(np.array(values)), io.BytesIO()
  if palette:
    image.putpalette([9, 9, 9, 8, 8, 8, 7, 7, 7, 9, 9, 9] * 64)
  image.save(file, kind)
  return file.getvalue()


@pytest.mark.parametrize(
    'coding, want',
    [
        (LabelCoding(4), [0, 1, 2, 3, VOID]),
        (LabelCoding(3, void=3), [0, 1, 2, VOID, VOID]),
        (LabelCoding(4, void=1), [0, VOID, 2, 3, VOID]),
        (LabelCoding(3, zero_is_void=True), [VOID, 0, 1, 2, VOID]),
        (LabelCoding(2, 3, zero_is_void=True), [VOID, 0, 1, VOID, VOID]),
    ],
)
@pytest.mark.parametrize('kind', ['bytes', 'palette', 'integers'])
def test_values_become_classes(coding, want, kind):
  values = [[0, 1, 2, 3, 255]]
  encoded = {
      'bytes': lambda: _png(np.uint8(values)),
      'palette': lambda: _png(np.uint8(values), palette=True),
      'integers': lambda: _png(np.uint16(values)),
  }[kind]()
  got = pictures.open_label(encoded, coding)
  assert got.dtype == np.uint8 and got.tolist() == [want]


@pytest.mark.parametrize(
    'values, coding, said',
    [
        (
            np.uint8([[0, 7]]),
            LabelCoding(7),
            '7: classes are 0 to 6; 255 is no class',
        ),
        (
            np.uint8([[9, 3]]),
            LabelCoding(3, 9),
            '3: classes are 0 to 2; 9 or 255 is no class',
        ),
        (
            np.uint8([[0, 4]]),
            LabelCoding(3, zero_is_void=True),
            '4: classes are 1 to 3; 0 or 255 is no class',
        ),
        (np.uint16([[0, 256]]), LabelCoding(3), 'has the value 256'),
        (np.zeros((2, 2, 3), np.uint8), LabelCoding(3), 'has the mode RGB'),
    ],
)
def test_values_that_are_no_classes(values, coding, said):
  with pytest.raises(ValueError, match=said):
    pictures.open_label(_png(values), coding)


def test_labels_that_are_not_kept_exactly_or_turned_or_damaged():
  encoded = _png(np.uint8([[0, 1]]), kind='JPEG')
  with pytest.raises(ValueError, match='is JPEG, which changes values'):
    pictures.open_label(encoded, LabelCoding(2))
  turned, exif = io.BytesIO(), PIL.Image.Exif()
  exif[0x0112] = 6
  PIL.Image.new('L', (3, 2)).save(turned, 'PNG', exif=exif)
  with pytest.raises(ValueError, match='is rotated by its EXIF tag'):
    pictures.open_label(turned.getvalue(), LabelCoding(2))
  noise = np.random.default_rng(0).integers(0, 2, (20, 20), np.uint8)
  with pytest.raises(ValueError, match='is damaged'):
    pictures.open_label(_png(noise)[:-30], LabelCoding(2))
