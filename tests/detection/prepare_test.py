"""Tests `gswinrmt prepare detection`: COCO, VOC, YOLO, and refusals."""

import argparse
import copy
import json
import re

import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.commands import prepare
from gswinrmt_jax.data import datasets, detection
from gswinrmt_jax.errors import UserError

# Name: width, height.
_IMAGES = {f'{name}.png': (20 + i, 12) for i, name in enumerate('abcdefgh')}


def run(*arguments):
  parser = argparse.ArgumentParser(prog='gswinrmt prepare')
  prepare.add_arguments(parser)
  return prepare.run(parser.parse_args([*map(str, arguments)])) or 0


@pytest.fixture(name='root')
def _root(tmp_path):
  (tmp_path / 'images').mkdir()
  for index, (name, size) in enumerate(_IMAGES.items()):
    image = PIL.Image.new('RGB', size, (index, 7, 9))
    image.save(tmp_path / 'images' / name)
  return tmp_path


def _coco(names, **changes):
  """Returns a COCO file with two objects an image, none in the last."""
  images, annotations = [], []
  for number, name in enumerate(names, 5):
    width, height = _IMAGES[name]
    images.append(
        {'id': number, 'file_name': name, 'width': width, 'height': height}
    )
    if name == names[-1]:
      continue
    for x in (1, 9):
      annotations.append(
          {
              'id': len(annotations) + 1,
              'image_id': number,
              'category_id': 90 if x == 1 else 3,
              'bbox': [x, 2, 6.5, 5],
              'area': 30.0,
              'iscrowd': 0,
              'segmentation': [[x, 2, x + 6.5, 2, x + 6.5, 7, x, 7]],
          }
      )
  return {
      'images': images,
      'annotations': annotations,
      'categories': [
          {'id': 90, 'name': 'toothbrush'},
          {'id': 3, 'name': 'car'},
      ],
      **changes,
  }


def _write(path, content):
  path.write_text(json.dumps(content))
  return path


def _prepare(root, *arguments):
  return run(
      'detection',
      'things',
      '--images',
      root / 'images',
      *arguments,
      '--dir',
      root / 'data',
      '--jobs=1',
  )


def test_coco_files_by_split(root, capsys):
  names = [*_IMAGES]
  train, val = _coco(names[:5]), _coco(names[5:])
  crowd = train['annotations'][0]
  pixels = np.zeros((12, 20), np.uint8)
  pixels[2:7, 1:8] = 1
  coder = detection.pycocotools('mask')
  coded = coder.encode(np.asfortranarray(pixels))
  coded['counts'] = coded['counts'].decode()
  crowd.update(iscrowd=1, segmentation=coded)
  train['annotations'][1]['segmentation'] = {
      'size': [12, 20],
      'counts': detection.runs(pixels).tolist(),
  }
  train['annotations'][2]['bbox'] = [-3, 2, 5, 30]  # beyond the image
  train['annotations'][3]['bbox'] = [50, 2, 5, 3]  # outside
  train['annotations'][4]['bbox'] = [3, 2, 0, 3]  # empty
  _prepare(
      root,
      '--boxes',
      _write(root / 'train.json', train),
      '--val',
      _write(root / 'val.json', val),
  )
  said = capsys.readouterr().out
  assert 'train 5, val 3 images of 2 classes (car, toothbrush)' in said
  assert re.search('train: 6 objects with masks, at most 2 in an image', said)
  for line in (
      'train: 1 image without objects, kept',
      'train: of them 1 crowd, not trained on',
      # The crowd, and what is left out, are not compared.
      'warning: train: the masks of 2 of 5 objects lie elsewhere than their '
      'boxes, the first annotation 2 of a.png',
      'train: 1 box outside of the image, left out',
      'train: 1 box without width or height, left out',
      'train: 1 box beyond the border of the image, cut off there',
      'at most 2 in an image; car 3, toothbrush 3',
      # Of 6.5 x 5, 3 of them, and of 2 x 10; the crowd does not count.
      'train: sides of boxes 4.5 / 5.7 / 5.7 pixels (smallest / median /',
      'training says what sides are after resizing',
  ):
    assert line in said
  data = str(root / 'data')
  assert datasets.info('things', data).task == 'detection'
  source = datasets.open_source('things', 'train', data, 'detection')
  found = {}
  for row, (size, objects) in enumerate(source.described()):
    image, same = source[row]
    assert image.size == size
    np.testing.assert_array_equal(objects.boxes, same.boxes)
    found[source.key(row)] = objects
  assert found.keys() == set(names[:5]) and not len(found['e.png'].labels)
  first = found['a.png']
  assert first.labels.tolist() == [1, 0] and first.crowds.tolist() == [1, 0]
  np.testing.assert_array_equal(first.boxes[0], [1, 2, 7.5, 7])
  np.testing.assert_array_equal(found['b.png'].boxes, [[0, 2, 2, 12]])
  assert first.areas.tolist() == [30, 30]
  for mask in first.masks:
    np.testing.assert_array_equal(mask, detection.runs(pixels))
  given = ['--boxes', root / 'train.json', '--val', root / 'val.json']
  _prepare(root, *given)
  assert 'already prepared' in capsys.readouterr().out
  for option in ('--test=0.2', '--seed=3'):
    said = f'{option.partition("=")[0]} has no effect: the splits are given'
    with pytest.raises(UserError, match=said):
      _prepare(root, *given, option)


def test_one_coco_file_is_divided_and_needs_no_masks(root, capsys):
  content = _coco([*_IMAGES])
  for each in content['annotations']:
    del each['segmentation'], each['area']
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0.25', '--test=0.25')
  assert 'train 4, val 2, test 2 images' in capsys.readouterr().out
  source = datasets.open_source(
      'things', 'val', str(root / 'data'), 'detection'
  )
  objects = [objects for _, objects in source.described()]
  assert all(found.masks is None for found in objects)
  assert {area for found in objects for area in found.areas} <= {32.5}


def test_the_area_of_a_mask_takes_the_place_of_a_missing_one(root):
  content = _coco([*_IMAGES])
  for each in content['annotations']:
    del each['area']
    x = each['bbox'][0]
    each['segmentation'] = [[x, 2, x + 6, 2, x + 6, 7, x, 7]]
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0.25', '--test=0')
  source = datasets.open_source(
      'things', 'train', str(root / 'data'), 'detection'
  )
  areas = {area for _, x in source.described() for area in x.areas}
  assert areas == {30.0}  # 6 x 5 pixels; the box has 6.5 x 5


def test_regions_to_ignore_are_crowds_and_need_no_masks(root, capsys):
  content = _coco([*_IMAGES])
  first, second, third, *_ = content['annotations']
  first |= {'ignore': 1, 'segmentation': []}
  second |= {'ignore': 1}
  third |= {'ignore': 0}
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  assert 'train: of them 2 crowds, not trained on' in capsys.readouterr().out
  source = datasets.open_source(
      'things', 'train', str(root / 'data'), 'detection'
  )
  found = {
      source.key(row): objects
      for row, (_, objects) in enumerate(source.described())
  }
  assert found['a.png'].crowds.all() and not found['b.png'].crowds.any()
  pixels = [runs[1::2].sum() for runs in found['a.png'].masks]
  assert pixels[0] == pixels[1] > 0  # of equal boxes


def test_many_classes_are_counted_as_smallest_median_and_largest(root, capsys):
  content = _coco([*_IMAGES])
  content['categories'] += [{'id': 200 + i, 'name': str(i)} for i in range(9)]
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  said = 'in an image; of a class (fewest / median / most) 0 / 0 / 7'
  assert said in capsys.readouterr().out


def test_one_class_is_one(root, capsys):
  content = _coco([*_IMAGES], categories=[{'id': 3, 'name': 'car'}])
  content['annotations'] = content['annotations'][1:2]
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  said = capsys.readouterr().out
  assert 'images of 1 class (car)' in said
  assert 'train: 1 object with masks, at most 1 in an image; car 1' in said


def test_an_object_without_a_mask_is_named(root, capsys):
  content = _coco([*_IMAGES])
  content['annotations'][2]['segmentation'] = []
  content['annotations'][4] |= {'ignore': 1, 'segmentation': []}
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  assert (
      '  warning: masks of 12 of 13 objects: none stored, image b.png has an '
      'object without'
  ) in capsys.readouterr().out


def test_boxes_that_seem_to_be_corners(root, capsys):
  content = _coco([*_IMAGES])
  boxes = [each['bbox'] for each in content['annotations']]
  boxes[0][:] = [1, 2, 19.5, 5]  # ends 0.5 pixels beyond the image
  boxes[1][:] = [9, 2, 15.5, 7]
  for each in content['annotations']:
    del each['segmentation']
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  assert 'suggest' not in capsys.readouterr().out
  boxes[3][:] = [9, 2, 15.5, 7]  # two of 14
  _write(path, content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0', '--replace')
  assert (
      '  warning: train: 3 boxes beyond the border of the image, cut off '
      'there: so many suggest corners x0 y0 x1 y1 instead of x y w h'
  ) in capsys.readouterr().out
  for each, whole in zip(
      content['annotations'], _coco([*_IMAGES])['annotations'], strict=True
  ):
    each['segmentation'] = whole['segmentation']
  _write(path, content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0', '--replace')
  said = capsys.readouterr().out
  assert '  train: 3 boxes beyond the border' in said
  assert 'suggest' not in said  # as most boxes are where their masks are


def test_masks_that_lie_elsewhere_than_their_boxes(root, capsys):
  content = _coco([*_IMAGES])
  objects = content['annotations']
  corner = [[16, 10, 19, 10, 19, 12, 16, 12]]
  objects[0]['segmentation'] = corner
  objects[1] |= {'bbox': [9, 2, 1.9, 5], 'segmentation': corner}  # small
  objects[2] |= {'bbox': [3.5, 3.5, 2, 2]}
  objects[2]['segmentation'] = [[4, 4, 6, 4, 6, 6, 4, 6]]  # half a pixel off
  objects[3] |= {'iscrowd': 1, 'segmentation': corner}
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  assert (
      '  warning: train: the masks of 1 of 12 objects lie elsewhere than their '
      'boxes, the first annotation 1 of a.png\n'
  ) in capsys.readouterr().out
  for each in objects[7:]:
    each['segmentation'] = [[100, 100, 103, 100, 103, 102]]  # outside
  _write(path, content)
  with pytest.raises(UserError) as caught:
    _prepare(root, '--boxes', path, '--val=0', '--test=0', '--replace')
  assert str(caught.value) == (
      'the masks of 8 of 12 objects lie elsewhere than their boxes, the first '
      'annotation 1 of a.png: boxes must be x y w h in pixels, and masks those '
      'of the same objects'
  )


def test_the_size_of_an_image_that_exif_rotates(root):
  exif = PIL.Image.Exif()
  exif[0x0112] = 6
  image = PIL.Image.open(root / 'images' / 'a.png')
  image.save(root / 'images' / 'a.png', exif=exif)
  content = _coco([*_IMAGES])
  path = _write(root / 'all.json', content)
  with pytest.raises(
      UserError,
      match=r'has 12 x 20 pixels after its EXIF rotation, in .*n 20 x 12',
  ):
    _prepare(root, '--boxes', path, '--val=0', '--test=0')


@pytest.mark.parametrize('orientation', [3, 6])
def test_objects_are_where_exif_shows_them(root, orientation):
  """3 is upside down, 6 a quarter turn: 20 x 12 becomes 12 x 20."""
  exif = PIL.Image.Exif()
  exif[0x0112] = orientation
  image = PIL.Image.open(root / 'images' / 'a.png')
  image.save(root / 'images' / 'a.png', exif=exif)
  boxes = root / 'labels'
  boxes.mkdir()
  (root / 'data.yaml').write_text('names: [ring]\n')
  (boxes / 'a.txt').write_text('0 0.5 0.5 1 1')
  _prepare(root, '--boxes', boxes, '--val=0', '--test=0')
  source = datasets.open_source(
      'things', 'train', str(root / 'data'), 'detection'
  )
  keys = [source.key(row) for row in range(len(source))]
  described, row = [*source.described()], keys.index('a.png')
  size, objects = described[row]
  assert size == source[row][0].size == {3: (20, 12), 6: (12, 20)}[orientation]
  np.testing.assert_array_equal(objects.boxes, [[0, 0, *size]])
  assert detection.Decoded(source).read(row, None)['extents'].tolist() == [
      *size[::-1]
  ]


def test_sizes_may_be_text(root, capsys):
  content = _coco([*_IMAGES])
  content['images'][0]['width'] = '20'
  path = _write(root / 'all.json', content)
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  assert 'train: 14 objects' in capsys.readouterr().out


def test_a_missing_image_is_not_damaged(root, capsys):
  path = _write(root / 'all.json', _coco([*_IMAGES]))
  (root / 'images' / 'c.png').unlink()
  _prepare(root, '--boxes', path, '--val=0', '--test=0', '--on-error=skip')
  said = capsys.readouterr().out
  assert 'damaged' not in said
  assert (
      'left out, as missing or without a counterpart: 1, the first c.png (is in'
  ) in said


def test_what_differs_is_named_without_its_content(root):
  path = _write(root / 'all.json', _coco([*_IMAGES]))
  _prepare(root, '--boxes', path, '--val=0', '--test=0')
  other = _write(root / 'other.json', _coco([*_IMAGES][:-1]))
  with pytest.raises(UserError) as caught:
    _prepare(root, '--boxes', other, '--val=0', '--test=0')
  assert str(caught.value) == (
      f'{root}/data/things/1.0.0 is prepared already, with other boxes, '
      'content of boxes, number of images (8 there, 7 here), names and sizes '
      'of files: prepare it again with --replace, or choose another name or '
      '--dir'
  )


def _change(path, value):
  def change(content):
    place = content
    *steps, last = path
    for step in steps:
      place = place[step]
    if value is KeyError:
      del place[last]
    else:
      place[last] = value

  return change


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (_change(['annotations', 1, 'id'], 1), 'two annotations have the id 1'),
        (_change(['annotations', 0, 'image_id'], 99), 'is of image 99, which'),
        (_change(['annotations', 0, 'category_id'], 8), 'unknown category 8'),
        (_change(['images', 1, 'id'], 5), 'two images have the id 5'),
        (_change(['images', 1, 'file_name'], 'a.png'), 'a.png is there twice'),
        (_change(['images', 0, 'width'], 21), r'20 x 12 pixels, in .* 21 x 12'),
        (
            _change(['images', 0, 'file_name'], 'x.png'),
            r'x\.png \(is in .*not i',
        ),
        (
            _change(['annotations', 0, 'bbox'], [1, 2, 3]),
            r'annotation 1: bbox must be four numbers x y w h, not \[1, 2, 3\]',
        ),
        (
            _change(['annotations', 0, 'bbox', 2], 'wide'),
            'annotation 1: bbox must be four numbers',
        ),
        (
            _change(['annotations', 0, 'bbox', 3], -5),
            'annotation 1: bbox x y w h has a negative width or height',
        ),
        (
            lambda content: [
                each.update(bbox=[0.1, 0.2, 1, 0.5])
                for each in content['annotations']
            ],
            "boxes are shares of the image; COCO's are in pixels",
        ),
        (
            _change(['annotations', 0, 'category_id'], '90'),
            "unknown category '90'",
        ),
        (
            _change(['annotations', 0, 'category_id'], [90]),
            r"annotations, id 1: 'category_id' is \[90\]",
        ),
        (_change(['images'], []), 'all.json has no images'),
        (
            lambda content: [
                each.update(file_name=f'x{each["id"]}.png')
                for each in content['images']
            ],
            'none of its 8 images is in .*images, the first is x5.png',
        ),
        (
            _change(['categories', 1, 'name'], KeyError),
            "categories, id 3: 'name' is missing",
        ),
        (
            _change(['images', 1], 'b.png'),
            r"images\[1\]: must be an object, not 'b.png'",
        ),
        (
            _change(['annotations', 0, 'bbox', 0], float('nan')),
            'annotation 1: bbox must be four numbers x y w h, not .nan, 2',
        ),
        (
            _change(['images', 0, 'width'], 'wide'),
            "the width 'wide' and the height 12: both must be numbers of",
        ),
        (
            _change(['annotations', 0, 'iscrowd'], '0'),
            "annotation 1: iscrowd must be the number 0 or 1, not '0'",
        ),
        (
            _change(['annotations', 0, 'iscrowd'], 2),
            'annotation 1: iscrowd must be the number 0 or 1, not 2',
        ),
        (
            _change(['annotations', 0, 'ignore'], 'no'),
            "annotation 1: ignore must be the number 0 or 1, not 'no'",
        ),
        (
            _change(['categories', 1, 'name'], ''),
            'the category with the id 3 has no name: give it one',
        ),
        (
            _change(['annotations', 0, 'segmentation'], [0, 0, 3, 0, 3, 3]),
            r'annotation 1 has a mask that cannot be used: a segmentation must '
            r'be a list of polygons .*, not \[0, 0, 3, 0, 3, 3\]',
        ),
        (
            _change(['annotations', 0, 'segmentation'], 'polygon'),
            "a segmentation must be a list of polygons .*, not 'polygon'",
        ),
        (
            _change(['annotations', 0, 'segmentation'], {'counts': [3]}),
            'a segmentation must be .* an object with size .height, width. and',
        ),
        (
            _change(
                ['annotations', 0, 'segmentation'], [[0, 0, 3, 0, 3, 3, 1]]
            ),
            'a polygon has 7 values, an odd number: it must be x and y of each',
        ),
        (
            _change(['annotations', 0, 'segmentation', 0, 1], float('nan')),
            r'a polygon has values that are no numbers of pixels .*: \[1, nan',
        ),
        (
            _change(['annotations', 0, 'segmentation', 0, 1], -1e9),
            'values that are no numbers of pixels up to a million',
        ),
        (
            _change(['annotations', 0, 'segmentation', 0, 1], float('inf')),
            r'a polygon has values that are no numbers of pixels .*: \[1, inf',
        ),
        (
            _change(
                ['annotations', 0, 'segmentation'],
                {'size': [12, 20], 'counts': ['a']},
            ),
            'its counts are not whole numbers',
        ),
        (
            _change(['annotations', 0, 'bbox'], KeyError),
            "annotations, id 1: 'bbox' is missing",
        ),
        (_change(['categories', 0, 'name'], 'car'), "the category 'car' twice"),
        (_change(['annotations'], KeyError), "'annotations' is missing"),
        (_change(['annotations', 0, 'segmentation'], [[1, 2]]), 'three points'),
        (
            _change(
                ['annotations', 0, 'segmentation'],
                {'size': [12, 20], 'counts': [3, 4]},
            ),
            'its runs have 7 pixels',
        ),
        (_change(['annotations'], []), 'no image of train has an object'),
    ],
)
def test_coco_files_that_are_refused(root, change, said):
  content = copy.deepcopy(_coco([*_IMAGES]))
  change(content)
  path = _write(root / 'all.json', content)
  with pytest.raises(UserError, match=said):
    _prepare(root, '--boxes', path, '--val=0', '--test=0')
  assert not (root / 'data' / 'things').exists()


def test_the_first_category_of_two_files_that_differs_is_named(root):
  train, val = (_coco([f'{n}.png' for n in part]) for part in ('abcde', 'fgh'))
  val['categories'][1]['id'] = 4
  for annotation in val['annotations']:
    if annotation['category_id'] == 3:
      annotation['category_id'] = 4
  paths = [
      _write(root / name, content)
      for name, content in (('train.json', train), ('val.json', val))
  ]
  said = 'val.json has other .*/train.json: the id 3 is none here, car there'
  with pytest.raises(UserError, match=said):
    _prepare(root, '--boxes', paths[0], '--val', paths[1])


def _voc(name, objects):
  size = '<size><width>{}</width><height>{}</height></size>'
  parts = [size.format(*_IMAGES[f'{name}.png'])]
  for label, box, difficult in objects:
    corners = ('xmin', 'ymin', 'xmax', 'ymax')
    box = ''.join(f'<{k}>{v}</{k}>' for k, v in zip(corners, box, strict=True))
    parts.append(
        f'<object><name>{label}</name><difficult>{difficult}</difficult>'
        f'<bndbox>{box}</bndbox></object>'
    )
  return f'<annotation>{"".join(parts)}</annotation>'


def test_voc_counts_pixels_from_one_and_lists_the_splits(root, capsys):
  boxes = root / 'boxes'
  boxes.mkdir()
  for name in 'abcdefgh':
    objects = [('dog', (1, 1, 4, 6), 0), ('cat', (3, 4, 9, 9), 1)]
    objects.append(('dog', (5, 5, 5, 5), 0))  # a click
    (boxes / f'{name}.xml').write_text(_voc(name, objects))
  (root / 'val.txt').write_text('b\nc\n')
  _prepare(root, '--boxes', boxes, '--val', root / 'val.txt')
  said = capsys.readouterr().out
  assert 'train 6, val 2 images of 2 classes (cat, dog)' in said
  assert (
      "  warning: class 'cat' has no objects in train but crowds, which are not"
  ) in said
  assert 'train: 6 boxes without width or height, left out' in said
  source = datasets.open_source(
      'things', 'val', str(root / 'data'), 'detection'
  )
  assert {source.key(row) for row in range(2)} == {'b.png', 'c.png'}
  for _, objects in source.described():
    np.testing.assert_array_equal(objects.boxes, [[0, 0, 4, 6], [2, 3, 9, 9]])
    assert objects.labels.tolist() == [1, 0]
    assert objects.crowds.tolist() == [False, True]
  whole = (boxes / 'a.xml').read_text()
  wrong = whole.replace('<xmax>4<', '<xmax>0<')
  (boxes / 'a.xml').write_text(wrong)
  with pytest.raises(UserError, match=r"'dog' with xmin > xmax .*a\.xml"):
    _prepare(root, '--boxes', boxes, '--replace')
  (boxes / 'a.xml').unlink()
  with pytest.raises(UserError, match=r'first a\.png \(has no \.xml'):
    _prepare(root, '--boxes', boxes, '--replace')


def test_label_files_are_found_as_images_are(root, tmp_path, capsys):
  """Through links, with suffixes in capitals, without what a Mac adds."""
  (root / 'images' / 'cam').mkdir()
  (root / 'images' / 'a.png').rename(root / 'images' / 'cam' / 'a.png')
  (root / 'elsewhere').mkdir()
  boxes = root / 'boxes'
  boxes.mkdir()
  (boxes / 'cam').symlink_to(root / 'elsewhere')
  for name in 'abcdefgh':
    folder = root / 'elsewhere' if name == 'a' else boxes
    label = 'cat' if name == 'a' else 'dog'
    content = _voc(name, [(label, (1, 1, 4, 6), 0)])
    (folder / f'{name}.{"XML" if name == "a" else "xml"}').write_text(content)
    (folder / f'._{name}.xml').write_bytes(b'\0\5')
  _prepare(root, '--boxes', boxes, '--val=0', '--test=0')
  said = capsys.readouterr().out
  assert 'train 8 images of 2 classes (cat, dog)' in said
  assert 'train: 8 objects' in said and 'without' not in said


def test_yolo_has_shares_of_the_image(root, capsys):
  boxes = root / 'labels'
  boxes.mkdir()
  (root / 'data.yaml').write_text('names:\n  0: ring\n  1: key\n')
  for name in 'abc':  # the others have no objects
    (boxes / f'{name}.txt').write_text('1 0.5 0.5 0.5 0.25\n\n')
  _prepare(root, '--boxes', boxes, '--val=0', '--test=0')
  said = capsys.readouterr().out
  assert '(ring, key)' in said and '5 images without objects' in said
  assert "warning: class 'ring' has no objects in train" in said
  data = str(root / 'data')
  source = datasets.open_source('things', 'train', data, 'detection')
  for row, (size, objects) in enumerate(source.described()):
    if source.key(row)[0] in 'abc':
      width = size[0]
      want = [[width / 4, 4.5, width * 3 / 4, 7.5]]
      np.testing.assert_allclose(objects.boxes, want)
  (boxes / 'a.txt').write_text('2 0.5 0.5 0.5 0.25\n')
  with pytest.raises(UserError, match='has an object of class 2'):
    _prepare(root, '--boxes', boxes, '--val=0', '--test=0', '--replace')
  (boxes / 'a.txt').write_text('1 0.5 0.5\n')
  with pytest.raises(UserError, match='line 1 is not a class and four shares'):
    _prepare(root, '--boxes', boxes, '--val=0', '--test=0', '--replace')
  for line, said in (
      ('1 0.1 0.1 0.9 0.1 0.9 0.9', r'polygons \(segmentation\) are not read'),
      ('1 0.5 0.5 0.5 0.25 0.99', "YOLO's predictions are not read, only its"),
      ('1 0.5 0.5 -0.5 0.25', 'line 1 has a negative width or height'),
  ):
    (boxes / 'a.txt').write_text(line)
    with pytest.raises(UserError, match=said):
      _prepare(root, '--boxes', boxes, '--val=0', '--test=0', '--replace')
  (root / 'data.yaml').write_text('nc: 3\nnames: [ring, key]\n')
  with pytest.raises(UserError, match='has 2 names, but nc is 3: correct'):
    _prepare(root, '--boxes', boxes)
  (root / 'data.yaml').write_text('names: ring\n')
  with pytest.raises(UserError, match='has no list of names'):
    _prepare(root, '--boxes', boxes)
  (root / 'data.yaml').write_text('names: [ring, ""]\n')
  with pytest.raises(UserError, match='class 1 has an empty name'):
    _prepare(root, '--boxes', boxes)
  (root / 'data.yaml').unlink()
  with pytest.raises(
      UserError, match=r'nor the two folders above it .*with --classes FILE'
  ):
    _prepare(root, '--boxes', boxes)


def test_a_list_names_each_image_once(root):
  boxes = root / 'labels'
  for folder in ('left', 'right'):
    (root / 'images' / folder).mkdir()
    (boxes / folder).mkdir(parents=True)
    for name in ('a', 'z'):
      image = PIL.Image.new('RGB', (20, 12), ord(name))
      image.save(root / 'images' / folder / f'{name}.png')
  (root / 'data.yaml').write_text('names: [ring]\n')
  for name in ('a', 'b'):
    (boxes / f'{name}.txt').write_text('0 0.5 0.5 0.5 0.25\n')
  val, test = root / 'val.txt', root / 'test.txt'
  for lines, said in (
      ('z', '--val .*: z may be left/z.png or right/z.png'),
      ('a\na.png', '--val .*: a.png is there twice'),
      ('right/z', '--test .*: right/z.png is for val, too'),
  ):
    val.write_text(lines)
    test.write_text('right/z.png\n')
    with pytest.raises(UserError, match=said):
      _prepare(root, '--boxes', boxes, '--val', val, '--test', test)
  val.write_text('c\na\nleft/z')  # a.png, not left/a.png or right/a.png
  _prepare(root, '--boxes', boxes, '--val', val, '--test', test)
  source = datasets.open_source(
      'things', 'val', str(root / 'data'), 'detection'
  )
  keys = {source.key(row) for row in range(len(source))}
  assert keys == {'a.png', 'c.png', 'left/z.png'}


def test_pixels_are_no_values_of_yolo(root, capsys):
  boxes = root / 'labels'
  boxes.mkdir()
  (root / 'data.yaml').write_text('names: [ring]\nnc: 1\n')
  (boxes / 'a.txt').write_text('0 10 6 4 4\n')
  (boxes / 'b.txt').write_text('0 0.5 0.5 0.5 0.25\n')
  _prepare(root, '--boxes', boxes, '--val=0', '--test=0')
  said = (
      "1 box outside of the image, left out: YOLO's values are shares of the "
      'image, 0 to 1, not pixels'
  )
  assert f'  warning: train: {said}\n' in capsys.readouterr().out
  (boxes / 'b.txt').write_text('')
  with pytest.raises(UserError) as caught:
    _prepare(root, '--boxes', boxes, '--val=0', '--test=0', '--replace')
  assert str(caught.value) == f'no image of train has an object: {said}'


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        ([], 'needs --boxes FILE or DIR'),
        (['--boxes', 'nowhere'], 'nowhere: no such file or folder'),
        (['--boxes', '{root}/images'], 'has neither .xml nor .txt files'),
        (['--boxes', '{root}/images/a.png'], 'is not JSON'),
        (
            ['--boxes', '{root}/list.json'],
            'annotations and categories, not list',
        ),
        (
            ['--boxes', '{root}/a.json', '--val=x'],
            'neither a number nor a file',
        ),
        (['--boxes', '{root}/a.json', '--labels=x'], 'takes no --labels'),
    ],
)
def test_wrong_arguments(root, arguments, said):
  _write(root / 'a.json', _coco([*_IMAGES]))
  _write(root / 'list.json', [])
  arguments = [argument.format(root=root) for argument in arguments]
  with pytest.raises(UserError, match=re.escape(said)):
    _prepare(root, *arguments)
