"""Tests `gswinrmt prepare detection`: COCO, VOC, YOLO, and refusals."""

import itertools
import json
import re
import shutil

import image_files
import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.data import datasets, detection
from gswinrmt_jax.errors import UserError

# Name: width, height.
_IMAGES = {f'{name}.png': (20 + i, 12) for i, name in enumerate('abcdefgh')}


@pytest.fixture(name='root')
def _root(tmp_path):
  (tmp_path / 'images').mkdir()
  for index, (name, size) in enumerate(_IMAGES.items()):
    image = PIL.Image.new('RGB', size, (index, 7, 9))
    image.save(tmp_path / 'images' / name)
  return tmp_path


def _run(root, *options):
  image_files.prepare(
      'detection',
      'things',
      f'--images={root}/images',
      f'--dir={root}/data',
      '--jobs=1',
      *options,
  )


@pytest.fixture(name='prepare')
def _prepare(root, capsys):
  """Prepares the images with COCO's contents or a path; returns the output."""

  def prepare(boxes, *options, val=0, test=0):
    if isinstance(boxes, dict):
      boxes = _write(root / 'all.json', boxes)
    shares = {'val': val, 'test': test}.items()
    given = [f'--{k}={v}' for k, v in shares if v is not None]
    _run(root, f'--boxes={boxes}', *given, *options)
    return capsys.readouterr().out

  return prepare


def _stored(root, split='train'):
  """Returns the objects of each image by the name of its file."""
  source = datasets.open_source(
      'things', split, str(root / 'data'), 'detection'
  )
  return {
      source.key(row): objects
      for row, (_, objects) in enumerate(source.described())
  }


def _rectangle(x0, y0, x1, y1):
  """Returns a mask's list of polygons."""
  return [[x0, y0, x1, y0, x1, y1, x0, y1]]


def _coco(names=tuple(_IMAGES), **changes):
  """Returns a COCO file with two objects an image, none in the last."""
  images = []
  for number, name in enumerate(names, 5):
    width, height = _IMAGES[name]
    images.append(
        {'id': number, 'file_name': name, 'width': width, 'height': height}
    )
  places = itertools.product(images[:-1], (1, 9))
  annotations = [
      {
          'id': number,
          'image_id': image['id'],
          'category_id': 90 if x == 1 else 3,
          'bbox': [x, 2, 6.5, 5],
          'area': 30.0,
          'iscrowd': 0,
          'segmentation': _rectangle(x, 2, x + 6.5, 7),
      }
      for number, (image, x) in enumerate(places, 1)
  ]
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


def test_coco_files_by_split(root, prepare):
  names = [*_IMAGES]
  train = _coco(names[:5])
  crowd = train['annotations'][0]
  pixels = np.zeros((12, 20), np.uint8)
  pixels[2:7, 1:8] = 1
  coder = detection.pycocotools('mask')
  runs = detection.runs(pixels).tolist()
  coded = coder.frPyObjects({'size': [12, 20], 'counts': runs}, 12, 20)
  coded['counts'] = coded['counts'].decode()
  crowd.update(iscrowd=1, segmentation=coded)
  train['annotations'][1]['segmentation'] = {
      'size': [12, 20],
      'counts': [*runs, 0],  # Empty runs are allowed.
  }
  train['annotations'][2]['bbox'] = [-3, 2, 5, 30]  # beyond the image
  train['annotations'][3]['bbox'] = [50, 2, 5, 3]  # outside
  train['annotations'][4]['bbox'] = [3, 2, 0, 3]  # empty
  val = _write(root / 'val.json', _coco(names[5:]))
  said = prepare(train, val=val, test=None)
  assert 'train 5, val 3 images of 2 classes (car, toothbrush)' in said
  assert 'train: 6 objects with masks, at most 2 in an image' in said
  for line in (
      'train: 1 image without objects, kept, the first e.png',
      'train: of them 1 crowd, not trained on',
      # The crowd, and what is left out, are not compared.
      'warning: train: 2 boxes elsewhere than the mask of the object, the '
      'first in a.png: boxes must be',
      'train: 1 box outside of the image, left out, the first in b.png',
      'train: 1 box without width or height, left out, the first in c.png',
      'train: 1 box beyond the border of the image, cut off there, the first '
      'in b.png',
      'at most 2 in an image; car 3, toothbrush 3',
      # Of 6.5 x 5, 3 of them, and of 2 x 10; the crowd does not count.
      'train: sides of boxes 4.5 / 5.7 / 5.7 pixels (smallest / median /',
      'training prints the sides after resizing',
  ):
    assert line in said
  data = str(root / 'data')
  assert datasets.info('things', data).task == 'detection'
  source = datasets.open_source('things', 'train', data, 'detection')
  for row, (size, objects) in enumerate(source.described()):
    image, same = source[row]
    assert image.size == size
    np.testing.assert_array_equal(objects.boxes, same.boxes)
  found = _stored(root)
  assert found.keys() == set(names[:5]) and not len(found['e.png'].labels)
  first = found['a.png']
  assert first.labels.tolist() == [1, 0] and first.crowds.tolist() == [1, 0]
  np.testing.assert_array_equal(first.boxes[0], [1, 2, 7.5, 7])
  np.testing.assert_array_equal(found['b.png'].boxes, [[0, 2, 2, 12]])
  assert first.areas.tolist() == [30, 30]
  for mask, expected in zip(first.masks, (runs, [*runs, 0]), strict=True):
    np.testing.assert_array_equal(mask, expected)
  assert 'already prepared' in prepare(train, val=val, test=None)
  for option in ('--test=0.2', '--seed=3'):
    said = f'{option.partition("=")[0]} has no effect: the splits are given'
    with pytest.raises(UserError, match=said):
      prepare(train, option, val=val, test=None)


def test_one_coco_file_is_divided_and_needs_no_masks(root, prepare):
  content = _coco()
  for each in content['annotations']:
    del each['segmentation'], each['area']
  said = prepare(content, val=0.25, test=0.25)
  assert 'train 4, val 2, test 2 images' in said
  objects = _stored(root, 'val').values()
  assert all(found.masks is None for found in objects)
  assert {area for found in objects for area in found.areas} <= {32.5}


def test_the_area_of_a_mask_takes_the_place_of_a_missing_one(root, prepare):
  content = _coco()
  for index, each in enumerate(content['annotations']):
    each['area'] = (None, 0)[index % 2]
    x = each['bbox'][0]
    each['segmentation'] = _rectangle(x, 2, x + 6, 7)
  prepare(content)
  areas = {area for objects in _stored(root).values() for area in objects.areas}
  assert areas == {30.0}  # 6 x 5 pixels; the box has 6.5 x 5


def test_regions_to_ignore_are_crowds_and_need_no_masks(root, prepare):
  content = _coco()
  first, second, third, *_ = content['annotations']
  first |= {'ignore': 1, 'segmentation': []}
  second |= {'ignore': 1}
  third |= {'ignore': 0}
  assert 'train: of them 2 crowds, not trained on' in prepare(content)
  found = _stored(root)
  assert found['a.png'].crowds.all() and not found['b.png'].crowds.any()
  pixels = [runs[1::2].sum() for runs in found['a.png'].masks]
  assert pixels[0] == pixels[1] > 0  # of equal boxes


def test_many_classes_are_counted_as_smallest_median_and_largest(prepare):
  content = _coco()
  content['categories'] += [{'id': 200 + i, 'name': str(i)} for i in range(9)]
  said = 'in an image; of a class (fewest / median / most) 0 / 0 / 7'
  assert said in prepare(content)


def test_an_object_without_a_mask_is_named(prepare):
  content = _coco()
  content['annotations'][2]['segmentation'] = []
  content['annotations'][4] |= {'ignore': 1, 'segmentation': []}
  assert (
      '  warning: some objects have no mask: none are stored; b.png has an '
      'object without one'
  ) in prepare(content)


def test_boxes_that_seem_to_be_corners(prepare):
  content, whole = _coco(), _coco()
  boxes = [each['bbox'] for each in content['annotations']]
  boxes[0][:] = [1, 2, 19.5, 5]  # ends 0.5 pixels beyond the image
  boxes[1][:] = [9, 2, 15.5, 7]
  for each in content['annotations']:
    del each['segmentation']
  assert 'suggest' not in prepare(content)
  boxes[3][:] = [9, 2, 15.5, 7]  # two of 14
  assert (
      '  warning: train: 2 boxes beyond the border of the image, cut off '
      'there, the first in a.png: so many suggest corners x0 y0 x1 y1 instead '
      'of x y w h'
  ) in prepare(content, '--replace')
  annotations = zip(content['annotations'], whole['annotations'], strict=True)
  for each, complete in annotations:
    each['segmentation'] = complete['segmentation']
  said = prepare(content, '--replace')
  assert '  train: 2 boxes beyond the border' in said
  assert 'suggest' not in said  # as most boxes are where their masks are


def test_masks_that_lie_elsewhere_than_their_boxes(prepare):
  content = _coco()
  objects = content['annotations']
  corner = _rectangle(16, 10, 19, 12)
  objects[0]['segmentation'] = corner
  objects[1] |= {'bbox': [9, 2, 1.9, 5], 'segmentation': corner}  # small
  objects[2] |= {'bbox': [3.5, 3.5, 2, 2]}
  objects[2]['segmentation'] = _rectangle(4, 4, 6, 6)  # half a pixel off
  objects[3] |= {'iscrowd': 1, 'segmentation': corner}
  assert (
      '  warning: train: 1 box elsewhere than the mask of the object, the '
      'first in a.png: boxes must be'
  ) in prepare(content)
  for each in objects[7:]:
    each['segmentation'] = [[100, 100, 103, 100, 103, 102]]  # outside
  with pytest.raises(UserError) as caught:
    prepare(content, '--replace')
  assert str(caught.value) == (
      '8 boxes elsewhere than the mask of the object, the first in a.png: '
      'boxes must be x y w h in pixels, and masks those of the same objects'
  )


def _rotate(path, orientation):
  """Stores how EXIF rotates an image."""
  exif = PIL.Image.Exif()
  exif[0x0112] = orientation
  PIL.Image.open(path).save(path, exif=exif)


def test_the_size_of_an_image_that_exif_rotates(root, prepare):
  _rotate(root / 'images' / 'a.png', 6)
  said = r'has 12 x 20 pixels \(after any EXIF.*, in .*n 20 x 12'
  with pytest.raises(UserError, match=said):
    prepare(_coco())


def _yolo(root, names='[ring]', **labels):
  """Writes names of classes and label files; returns their folder."""
  folder = root / 'labels'
  folder.mkdir(exist_ok=True)
  (root / 'data.yaml').write_text(f'names: {names}\n')
  for name, text in labels.items():
    (folder / f'{name}.txt').write_text(text)
  return folder


@pytest.mark.parametrize('orientation', [3, 6])
def test_objects_are_where_exif_shows_them(root, prepare, orientation):
  """3 is upside down, 6 a quarter turn: 20 x 12 becomes 12 x 20."""
  _rotate(root / 'images' / 'a.png', orientation)
  said = prepare(_yolo(root, a='0 0.5 0.5 1 1'))
  assert 'by their EXIF: 1; labels are those of the rotated images' in said
  source = datasets.open_source(
      'things', 'train', str(root / 'data'), 'detection'
  )
  keys = [source.key(row) for row in range(len(source))]
  described, row = [*source.described()], keys.index('a.png')
  size, objects = described[row]
  assert size == source[row][0].size == {3: (20, 12), 6: (12, 20)}[orientation]
  np.testing.assert_array_equal(objects.boxes, [[0, 0, *size]])
  assert detection.AnnotatedImages(source).read(row, None)[
      'extents'
  ].tolist() == [*size[::-1]]


def test_sizes_may_be_text(prepare):
  content = _coco()
  content['images'][0]['width'] = '20'
  assert 'train: 14 objects' in prepare(content)


def test_an_image_of_the_same_name_elsewhere_is_another(root, prepare):
  """As in videos of several cameras; if all are elsewhere, they were moved."""
  (root / 'images' / 'left').mkdir()
  (root / 'images' / 'c.png').rename(root / 'images' / 'left' / 'c.png')
  said = prepare(_coco(), '--on-error=skip')
  assert 'left out: 1, the first c.png (is in' in said
  assert 'left/c.png' not in _stored(root)
  content = _coco()
  for image in content['images']:
    image['file_name'] = f'photos/{image["file_name"]}'
  prepare(content, '--replace')
  assert 'left/c.png' in _stored(root)


def test_images_lie_beside_the_files_of_their_splits(root, prepare):
  for split in ('train', 'val'):
    shutil.copytree(root / 'images', root / 'all' / split)
    _write(root / 'all' / split / 'coco.json', _coco())
  (root / 'all').rename(root / 'images' / 'all')
  for path in (root / 'images').glob('*.png'):
    path.unlink()
  place = root / 'images' / 'all'
  prepare(place / 'train/coco.json', val=place / 'val/coco.json', test=None)
  assert all(name.startswith('all/val/') for name in _stored(root, 'val'))


def test_paths_begin_beside_a_file_above_the_images(root, prepare):
  """None is guessed by its last part, which another folder has, too."""
  for camera in ('cam1', 'cam2'):
    shutil.copytree(root / 'images', root / 'all' / camera)
  shutil.rmtree(root / 'images')
  (root / 'all').rename(root / 'images')
  content = _coco()
  for image in content['images']:
    image['file_name'] = f'./images/cam1/{image["file_name"]}'
  prepare(content)
  assert {*_stored(root)} == {f'cam1/{name}' for name in _IMAGES}
  (root / 'images' / 'cam1' / 'c.png').unlink()
  with pytest.raises(UserError, match=r'1 of 8 images .*cam1/c\.png'):
    prepare(content, '--replace')


def test_what_differs_is_named_without_its_content(root, prepare):
  prepare(_coco())
  other = _write(root / 'other.json', _coco([*_IMAGES][:-1]))
  with pytest.raises(UserError) as caught:
    prepare(other)
  assert str(caught.value) == (
      f'{root}/data/things/1.0.0 is prepared already, with other content of '
      'boxes, number of images, splits, names or sizes of files: prepare it '
      'again with --replace, or choose another name or --dir'
  )


@pytest.fixture(name='refused')
def _refused(root, prepare):
  """Checks that contents are refused, and that nothing is written."""

  def refused(content, said):
    with pytest.raises(UserError, match=said):
      prepare(content)
    assert not (root / 'data' / 'things').exists()

  return refused


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        ({'id': 2}, 'two annotations have the id 2'),
        ({'image_id': 99}, 'is of image 99 and category 90, which are not bo'),
        ({'category_id': 8}, 'is of image 5 and category 8, which'),
        (
            {'bbox': [1, 2, 3]},
            r'annotation 1: bbox must be four numbers x y w h, not \[1, 2, 3\]',
        ),
        ({'bbox': [float('nan'), 2, 7, 5]}, 'four numbers x y w h, not .nan'),
        ({'bbox': [1, 2, 6.5, -5]}, '1: bbox x y w h has a negative width or'),
        (
            {'area': -30.0},
            r'annotation 1: area must be a finite .* more: -30\.0',
        ),
        ({'iscrowd': '0'}, "1: iscrowd must be 0 or 1: '0'"),
        ({'ignore': 'no'}, "1: ignore must be 0 or 1: 'no'"),
    ],
)
def test_objects_that_are_refused(fields, said, refused):
  content = _coco()
  content['annotations'][0] |= fields
  refused(content, said)


_POINTS = 'a polygon must be x and y of at least three points, in pixels up to'


@pytest.mark.parametrize(
    ('mask', 'said'),
    [
        (
            [0, 0, 3, 0, 3, 3],
            r'annotation 1 has a mask that cannot be used: a segmentation must '
            r'be a list of polygons .*, not \[0, 0, 3, 0, 3, 3\]',
        ),
        ({'counts': [3]}, 'must be .* an object with size .height, width. and'),
        ([[0, 0, 3, 0, 3, 3, 1]], _POINTS),
        (_rectangle(1, float('nan'), 8, 7), rf'{_POINTS}.*, not \[1, nan'),
        (_rectangle(1, -1e9, 8, 7), _POINTS),
        ({'size': [12, 20], 'counts': ['a']}, 'counts are not whole numbers'),
        ({'size': [12, 20], 'counts': [3, 4]}, 'its runs have 7 pixels'),
        ({'size': [12, 20], 'counts': '34'}, 'its runs are damaged'),
        # pycocotools would crash, reading more numbers than there are.
        ({'size': [12, 20], 'counts': '1' * 50 + 'o'}, 'its runs are damaged'),
    ],
)
def test_masks_that_are_refused(mask, said, refused):
  content = _coco()
  content['annotations'][0]['segmentation'] = mask
  refused(content, said)


@pytest.mark.parametrize(
    ('part', 'fields', 'said'),
    [
        ('images', {'id': 6}, 'two images have the id 6'),
        ('images', {'file_name': 'b.png'}, 'b.png is there twice'),
        ('images', {'file_name': 'x.png'}, r'x\.png \(is in .*not i'),
        ('images', {'width': 21}, r'20 x 12 pixels .*, in .* 21 x 12'),
        ('images', {'file_name': 5}, 'not in the format of COCO, with images,'),
        ('categories', {'id': 3}, 'two categories have the id 3'),
        ('categories', {'name': 'car'}, "2 classes are named 'car'"),
        ('categories', {'name': None}, 'a class has no name'),
    ],
)
def test_images_and_categories_that_are_refused(part, fields, said, refused):
  content = _coco()
  content[part][0] |= fields
  refused(content, said)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (
            lambda content: [
                each.update(bbox=[0.1, 0.2, 1, 0.5])
                for each in content['annotations']
            ],
            "boxes are shares of the image; COCO's are in pixels",
        ),
        (
            lambda content: [
                each.update(file_name=f'x{each["id"]}.png')
                for each in content['images']
            ],
            r'no image is left for train: x5\.png is in .*, but not in',
        ),
        (
            lambda content: content.update(images=[], annotations=[]),
            'all.json has no images, or no categories',
        ),
        (
            lambda content: content.update(annotations=[]),
            'no image of train has an object',
        ),
        (
            lambda content: [
                each.update(iscrowd=1) for each in content['annotations']
            ],
            'has an object: 14 crowds$',
        ),
        (
            lambda content: [
                each.update(bbox=[0, 0, 0, 0])
                for each in content['annotations']
            ],
            'has an object: 14 boxes without width or height, left out$',
        ),
        (
            lambda content: content.pop('annotations'),
            r"not in the format of COCO, .*: KeyError\('annotations'\)",
        ),
        (
            lambda content: content['annotations'][0].pop('bbox'),
            r"KeyError\('bbox'\)",
        ),
    ],
)
def test_coco_files_that_are_refused(change, said, refused):
  content = _coco()
  change(content)
  refused(content, said)


def test_the_first_category_of_two_files_that_differs_is_named(root, prepare):
  train, val = (_coco([f'{n}.png' for n in part]) for part in ('abcde', 'fgh'))
  val['categories'][1]['id'] = 4
  for annotation in val['annotations']:
    if annotation['category_id'] == 3:
      annotation['category_id'] = 4
  path = _write(root / 'val.json', val)
  said = 'val.json has other .*/all.json: the id 3 is none here, car there'
  with pytest.raises(UserError, match=said):
    prepare(train, val=path, test=None)


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


def test_voc_counts_pixels_from_one_and_lists_the_splits(root, prepare):
  boxes = root / 'boxes'
  boxes.mkdir()
  for name in 'abcdefgh':
    objects = [('dog', (1, 1, 4, 6), 0), ('cat', (3, 4, 9, 9), 1)]
    objects.append(('dog', (5, 5, 5, 5), 0))  # a click
    (boxes / f'{name}.xml').write_text(_voc(name, objects))
  (root / 'val.txt').write_text('b\nc\n')
  said = prepare(boxes, val=root / 'val.txt', test=None)
  assert 'train 6, val 2 images of 2 classes (cat, dog)' in said
  assert (
      "  warning: class 'cat' has no objects in train but crowds, which are not"
  ) in said
  assert 'train: 6 boxes without width or height, left out' in said
  found = _stored(root, 'val')
  assert found.keys() == {'b.png', 'c.png'}
  for objects in found.values():
    np.testing.assert_array_equal(objects.boxes, [[0, 0, 4, 6], [2, 3, 9, 9]])
    assert objects.labels.tolist() == [1, 0]
    assert objects.crowds.tolist() == [False, True]
  whole = (boxes / 'a.xml').read_text()
  wrong = whole.replace('<xmax>4<', '<xmax>0<')
  (boxes / 'a.xml').write_text(wrong)
  with pytest.raises(UserError, match=r"'dog' with xmin > xmax .*a\.xml"):
    prepare(boxes, '--replace')
  (boxes / 'a.xml').write_text('<?xml version="1.0" encoding="foo"?><a/>')
  with pytest.raises(UserError, match=r'a\.xml, which is not XML in UTF-8: u'):
    prepare(boxes, '--replace')
  said = prepare(boxes, '--replace', '--on-error=skip')
  assert 'left out: 1, the first a.png (has ' in said
  (boxes / 'a.xml').unlink()
  with pytest.raises(UserError, match=r'first a\.png \(has no \.xml'):
    prepare(boxes, '--replace')


def test_label_files_are_found_as_images_are(root, prepare):
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
  said = prepare(boxes)
  assert 'train 8 images of 2 classes (cat, dog)' in said
  assert 'train: 8 objects' in said and 'without' not in said


def test_yolo_has_shares_of_the_image(root, prepare):
  labels = dict.fromkeys('abc', '1 0.5 0.5 0.5 0.25\n\n')
  said = prepare(_yolo(root, '\n  0: ring\n  1: key', **labels))
  assert '(ring, key)' in said and '5 images without objects' in said
  assert "warning: class 'ring' has no objects in train" in said
  found = _stored(root)
  for name in 'abc':
    width, _ = _IMAGES[f'{name}.png']
    want = [[width / 4, 4.5, width * 3 / 4, 7.5]]
    np.testing.assert_allclose(found[f'{name}.png'].boxes, want)


def test_a_misnamed_file_of_yolo_is_told(root, prepare):
  labels = '0 0.5 0.5 0.5 0.5'
  boxes = _yolo(root, a=labels, bb=labels, c=labels)
  said = prepare(boxes, '--on-error=skip')
  assert f'{boxes}/bb.txt (is without an image in {root}/images)' in said
  assert '6 images without objects, kept, the first b.png' in said


@pytest.mark.parametrize('place', ['{split}/{kind}', '{kind}/{split}'])
def test_images_and_labels_of_yolo_may_be_in_one_folder(place, root, prepare):
  (root / 'data.yaml').write_text('names: [ring, key]')
  for split, name in (('train', 'a'), ('train', 'b'), ('valid', 'c')):
    images, labels = (
        root / 'set' / place.format(split=split, kind=kind)
        for kind in ('images', 'labels')
    )
    images.mkdir(parents=True, exist_ok=True)
    labels.mkdir(parents=True, exist_ok=True)
    (root / 'images' / f'{name}.png').rename(images / f'{name}.png')
    (labels / f'{name}.txt').write_text('1 0.5 0.5 0.5 0.25')
  said = prepare(root / 'set', f'--images={root}/set', val=None, test=None)
  assert 'train 2, val 1 images' in said and 'without' not in said


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        ('2 0.5 0.5 0.5 0.25', 'has an object of class 2'),
        ('1 0.5 0.5', 'line 1 is not a class and four shares'),
        ('1.5 0.5 0.5 0.5 0.25', 'line 1 is not a class and four shares'),
        ('1 0.5 0.5 0.5 0.25 0.99', 'or a class and the corners of a polygon'),
        ('1 0.5 0.5 -0.5 0.25', 'line 1 has a negative width or height'),
    ],
)
def test_lines_of_yolo_that_are_refused(line, said, root, prepare):
  with pytest.raises(UserError, match=said):
    prepare(_yolo(root, '[ring, key]', a=line))


@pytest.mark.parametrize(
    ('names', 'said'),
    [
        ('ring', 'has no list of names'),
        ('[ring, [key, lock]]', 'has no list of names'),
        ('{0: ring, 2: key}', 'or of their numbers from 0'),
        ('[ring, key, ring]', "2 classes are named 'ring'"),
    ],
)
def test_names_of_yolo_that_are_refused(names, said, root, prepare):
  with pytest.raises(UserError, match=said):
    prepare(_yolo(root, names, a='0 0.5 0.5 0.5 0.25'))


def test_key_points_of_yolo_are_no_polygons(root, prepare):
  boxes = _yolo(root, '[ring]\nkpt_shape: [2, 2]', a='0 .5 .5 1 1 .5 .5 .6 .6')
  (root / 'names').write_text('ring\n')
  said = 'kpt_shape: key points are not read'
  with pytest.raises(UserError, match=said):
    prepare(boxes, f'--classes={root}/names')
  with pytest.raises(UserError, match=said):
    prepare((root / 'data.yaml').rename(root / 'pose.yaml'))


def test_the_folder_of_images_may_be_named_beside_the_yaml(root, prepare):
  _yolo(root, a='0 0.5 0.5 0.5 0.5')
  assert 'train: 1 object' in prepare(root / 'data.yaml')


def test_polygons_of_yolo_are_masks(root, prepare):
  triangle = '1.0 0.5 0.5 1 0.5 0.5 1'
  boxes = _yolo(root, '[ring, key]', **dict.fromkeys('abc', triangle))
  said = prepare(root / 'data.yaml', f'--images={root}')
  assert 'train: 3 objects with masks' in said
  source = datasets.open_source(
      'things', 'train', str(root / 'data'), 'detection'
  )
  found = [pair for pair in source.described() if len(pair[1].labels)]
  assert len(found) == 3
  for (width, height), objects in found:
    want = [[width / 2, height / 2, width, height]]
    np.testing.assert_allclose(objects.boxes, want)
    assert objects.labels == 1
    # A triangle is half of its box; of pixels on its border, some count.
    area = objects.masks[0][1::2].sum()
    assert abs(area - width * height / 8) < height / 2
  for name in 'abc':
    (boxes / f'{name}.txt').write_text(f'{triangle}\n0 0.5 0.5 1 1')
  said = prepare(boxes, '--replace')
  assert 'some objects have no mask: none are stored; a.png has' in said


def test_names_of_yolo_are_as_they_are_written(root, prepare):
  said = prepare(_yolo(root, '[yes, no, 007]\nnc: 3', a='0 0.5 0.5 1 1'))
  assert 'images of 3 classes (yes, no, 007)' in said


def test_names_with_an_accent_of_its_own_are_paired(root, prepare):
  """As a Mac writes them: one character more than other systems write."""
  (root / 'images' / 'a.png').rename(root / 'images' / 'u\u0308.png')
  said = prepare(_yolo(root, **dict.fromkeys('b\xfc', '0 0.5 0.5 1 1')))
  assert '8 images of 1 class' in said and 'left out' not in said
  (root / 'val.txt').write_text('\xfc.png\n')
  said = prepare(root / 'labels', '--replace', val=root / 'val.txt', test=None)
  assert 'train 7, val 1 images' in said
  content = _coco()
  content['images'][0]['file_name'] = '\xfc.png'
  assert 'left out' not in prepare(content, '--replace')


def test_paths_of_windows(root, prepare):
  (root / 'images' / 'left').mkdir()
  for name in ('a.png', 'b.png'):
    (root / 'images' / name).rename(root / 'images' / 'left' / name)
  content = _coco()
  for image in content['images'][:2]:
    image['file_name'] = 'left\\' + image['file_name']
  assert 'left out' not in prepare(content)
  labels = root / 'labels' / 'left'
  labels.mkdir(parents=True)
  (labels / 'a.txt').write_text('0 0.5 0.5 1 1')
  boxes = _yolo(root)
  (root / 'val.txt').write_text('left\\b.png\n')
  said = prepare(boxes, '--replace', val=root / 'val.txt', test=None)
  assert 'train 7, val 1 images' in said


def test_names_of_classes_in_a_file(root, prepare):
  boxes = _yolo(root, a='1 0.5 0.5 0.5 0.25')
  (root / 'data.yaml').unlink()
  said = r'nor the two folders above it .*with --classes FILE'
  with pytest.raises(UserError, match=said):
    prepare(boxes)
  (root / 'names').write_text('ring\nkey\n')
  assert '(ring, key)' in prepare(boxes, f'--classes={root}/names')


def test_a_list_names_each_image_once(root, prepare):
  for folder in ('left', 'right'):
    (root / 'images' / folder).mkdir()
    for name in ('a', 'z'):
      image = PIL.Image.new('RGB', (20, 12), ord(name))
      image.save(root / 'images' / folder / f'{name}.png')
  boxes = _yolo(root, **dict.fromkeys('ab', '0 0.5 0.5 0.5 0.25'))
  val, test = root / 'val.txt', root / 'test.txt'
  for lines, said in (
      ('z', 'val.txt: z may be left/z.png or right/z.png'),
      ('a\na.png', '--val .*: a.png is for val already'),
      ('right/z', '--test .*: right/z.png is for val already'),
  ):
    val.write_text(lines)
    test.write_text('right/z.png\n')
    with pytest.raises(UserError, match=said):
      prepare(boxes, val=val, test=test)
  for lines, found in (
      ('c\na\nleft/z', {'c.png', 'a.png', 'left/z.png'}),  # not left/a.png
      ('./images/a.png\n./images/left/z', {'a.png', 'left/z.png'}),
      ('elsewhere/c.png', {'c.png'}),
  ):
    val.write_text(lines)
    prepare(boxes, '--replace', val=val, test=test)
    assert _stored(root, 'val').keys() == found
  val.write_text('c\nin/a')  # Paths begin here: this is another image.
  with pytest.raises(UserError, match='in/a is not among the images'):
    prepare(boxes, '--replace', val=val, test=test)


def test_pixels_are_no_values_of_yolo(root, prepare):
  boxes = _yolo(root, '[ring]\nnc: 1', a='0 10 6 4 4', b='0 0.5 0.5 0.5 0.25')
  left_out = '1 box outside of the image, left out'
  hint = "YOLO's values are shares of the image, 0 to 1, not pixels"
  said = f'  warning: train: {left_out}, the first in a.png: {hint}\n'
  assert said in prepare(boxes)
  (boxes / 'b.txt').write_text('')
  with pytest.raises(UserError) as caught:
    prepare(boxes, '--replace')
  assert str(caught.value) == (
      f'no image of train has an object: {left_out}; {hint}'
  )


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        ('', 'needs --boxes FILE or DIR'),
        ('--boxes=nowhere', 'nowhere: no such file or folder'),
        ('--boxes={root}/images', 'has neither .xml nor .txt files'),
        ('--boxes={root}/images/a.png', 'is not JSON'),
        ('--boxes={root}/list.json', 'annotations and categories: TypeError('),
        ('--boxes={root}/a.json --val=x', 'neither a number nor a file'),
        ('--boxes={root}/a.json --labels=x', 'takes no --labels'),
        (
            '--boxes={root}/a.json --classes=x',
            'has the classes: leave out --classes',
        ),
    ],
)
def test_wrong_arguments(root, arguments, said):
  _write(root / 'a.json', _coco())
  _write(root / 'list.json', [])
  arguments = [each.format(root=root) for each in arguments.split()]
  with pytest.raises(UserError, match=re.escape(said)):
    _run(root, *arguments)
