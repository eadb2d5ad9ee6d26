from collections import Counter

from gswinrmt_jax.data import image_report
from gswinrmt_jax.data.collection import Collection, Picture
from gswinrmt_jax.data.inspect_images import Finding

_KINDS = ('RGB', 'JPEG')


def _tallied(**splits):
  """A picture is (name, label, finding)."""
  tally = image_report.Tally()
  kept = {}
  for split, pictures in splits.items():
    kept[split] = [
        picture
        for name, label, finding in pictures
        if tally.add(split, picture := Picture(name, label), finding, True)
    ]
  collection = Collection(
      '/x', ('a', 'b'), kept, Counter({'.txt': 2, 'hidden': 0})
  )
  collection.notes.append('a note')
  return collection, tally


def _made():
  return image_report.make(
      *_tallied(
          train=[
              ('a/1.jpg', 0, Finding('', 11, 100, 7, 5, 'RGB', 'JPEG')),
              ('a/2.jpg', 0, Finding('', 12, 100, 9, 5, 'L', 'PNG')),
              ('a/3.jpg', 0, Finding('', 11, 100, 7, 5, 'RGB', 'JPEG')),
              ('b/4.jpg', 1, Finding('', 11, 100, 7, 5, 'RGB', 'MPO', True)),
              ('b/5.jpg', 1, Finding('is empty')),
          ],
          val=[
              ('a/6.webp', 0, Finding('', 14, 100, 8, 5, 'RGB', 'WEBP')),
              ('a/7.webp', 0, Finding('', 11, 100, 7, 5, 'RGB', 'WEBP')),
              ('a/8.webp', 0, Finding('', 11, 100, 7, 5, 'RGB', 'WEBP')),
              ('a/9.webp', 0, Finding('', 15, 100, 8, 5, 'RGB', 'WEBP')),
              ('a/10.webp', 0, Finding('', 15, 100, 8, 5, 'RGB', 'WEBP')),
          ],
      ),
      seconds=2.0,
  )


def test_every_figure():
  report = _made()
  assert report['splits'] == {
      'train': {
          'images': 4,
          'images_per_class': {'min': 1, 'median': 2, 'max': 3},
          'by_class': [3, 1],
      },
      'val': {
          'images': 5,
          'images_per_class': {'min': 0, 'median': 2.5, 'max': 5},
          'by_class': [5, 0],
      },
  }
  assert report['formats'] == {'WEBP': 5, 'JPEG': 2, 'PNG': 1, 'MPO': 1}
  assert report['modes'] == {'RGB': 8, 'L': 1}
  assert report['width'] == {'min': 7, 'median': 7, 'max': 9}
  assert report['bytes'] == 900
  assert report['turned_by_exif'] == report['suffix_of_another_format'] == 1
  assert report['damaged'] == [{'file_name': 'b/5.jpg', 'problem': 'is empty'}]
  assert report['ignored'] == {'.txt': 2}
  assert report['decoded_per_second'] == 5  # Ten in two seconds.


def test_identical_pictures_within_and_across_splits():
  identical = _made()['identical']
  assert identical == {
      'extra': {'within train': 2, 'of val in train': 2, 'within val': 1},
      'of_several_classes': 1,
      'examples': [
          ['a/1.jpg', 'a/3.jpg', 'b/4.jpg', 'a/7.webp', 'a/8.webp'],
          ['a/9.webp', 'a/10.webp'],
      ],
      'examples_of_several_classes': [['a/1.jpg', 'b/4.jpg']],
  }


def test_median_is_the_lower_of_two():
  pictures = [
      (f'{i}.jpg', i % 2, Finding('', i, 9, width, 5, *_KINDS))
      for i, width in enumerate((3, 4, 8, 9))
  ]
  collection, tally = _tallied(train=pictures)
  assert image_report.make(collection, tally, 1)['width']['median'] == 4


def test_lines():
  assert image_report.lines('pets', _made()) == [
      'pets: train 4, val 5 pictures of 2 classes',
      '  of a class (fewest / median / most): train 1 / 2 / 3, val 0 / 2.5 / 5',
      '  formats: WEBP 5, JPEG 2, PNG 1, MPO 1; modes: RGB 8, L 1',
      '  width 7 / 7 / 9, height 5 / 5 / 5 (smallest / median / largest)',
      '  smallest a/1.jpg (7 x 5), largest a/2.jpg (9 x 5)',
      '  left out as damaged: 1 (report.json)',
      '  turned by their EXIF: 1',
      '  with the suffix of another format: 1, the first a/2.jpg',
      '  byte for byte like another: within train 2, of val in train 2, '
      'within val 1',
      '  the same bytes in several classes: 1 times, first a/1.jpg and b/4.jpg',
      '  passed over: .txt 2',
      '  a note',
      '  decoded 10 at 5 a second',
  ]


def test_nothing_odd_nothing_said():
  good = [
      (f'{i}.jpg', i % 2, Finding('', i, 9, 7, 5, *_KINDS)) for i in range(4)
  ]
  collection, tally = _tallied(train=good)
  collection.ignored.clear()
  collection.notes.clear()
  lines = image_report.lines('x', image_report.make(collection, tally, 1))
  assert len(lines) == 5
