"""Tests preparing segmentation data sets from images and label images."""

import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import image_files
import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import dataset_record

_EXAMPLE = pathlib.Path(__file__).parents[2] / 'examples' / 'digit_scenes.py'


def _label(seed, high=3, size=(5, 7)):
  """Returns the bytes of a label image with classes below `high`."""
  rng = np.random.default_rng(seed)
  file = io.BytesIO()
  PIL.Image.fromarray(rng.integers(0, high, size, np.uint8)).save(file, 'PNG')
  return file.getvalue()


def _write(root, *names, high=3):
  """Writes images and their label images; returns {file name: both bytes}."""
  images = image_files.write(root / 'images', [f'{n}.jpg' for n in names])
  labels = {f'{name}.png': _label(i, high) for i, name in enumerate(names)}
  for name, content in labels.items():
    (root / 'labels' / name).parent.mkdir(parents=True, exist_ok=True)
    (root / 'labels' / name).write_bytes(content)
  return {
      name: (content, label)
      for (name, content), label in zip(
          images.items(), labels.values(), strict=True
      )
  }


def _run(root, *options):
  """Prepares the data set `scenes`."""
  image_files.prepare(
      'segmentation',
      'scenes',
      '--jobs=1',
      f'--images={root}/images',
      f'--labels={root}/labels',
      f'--dir={root}/out',
      *options,
  )


def _said(root, *options):
  """Returns the one-line error; only a list of damaged files is written."""
  with pytest.raises(UserError) as caught:
    _run(root, *options)
  written = os.listdir(root / 'out') if (root / 'out').exists() else []
  assert set(written) <= {'scenes-damaged.txt'}
  assert '\n' not in str(caught.value)
  return str(caught.value)


_SPLITS = ('train/a', 'train/sub/b', 'train/c', 'val/a')


def test_both_files_bytes_are_kept(tmp_path, capsys):
  contents = _write(tmp_path, *_SPLITS)
  (tmp_path / 'names').write_text('sky\nroad\n the car \n')
  _run(tmp_path, f'--classes={tmp_path}/names')
  said = capsys.readouterr().out
  assert 'scenes: train 3, val 1 images of 3 classes' in said
  assert 'pixels without a class: train 0.0%, val 0.0%' in said
  folder = tmp_path / 'out/scenes/1.0.0'
  builder = tfds.builder_from_directory(folder)
  assert builder.info.features['segmentation_mask'].names == [
      'sky', 'road', 'the car',
  ]  # fmt: skip
  skip = tfds.decode.SkipDecoding()
  found = {
      record['file_name'].decode(): (
          record['image'], record['segmentation_mask'],
      )
      for split in ('train', 'val')
      for record in builder.as_data_source(
          split, decoders={'image': skip, 'segmentation_mask': skip}
      )
  }  # fmt: skip
  assert found == contents
  report = json.loads((folder / 'report.json').read_text('utf-8'))
  assert sum(report['splits']['train']['pixels_by_class']) == 3 * 35
  info = datasets.info('scenes', str(tmp_path / 'out'))
  assert info.task == 'segmentation'
  assert info.class_names == ('sky', 'road', 'the car')
  # Unmodified TFDS decodes both.
  record = next(iter(builder.as_data_source('val')))
  assert record['segmentation_mask'].shape == (5, 7, 1)


def test_values_without_a_class_are_applied_on_reading(tmp_path, capsys):
  _write(tmp_path, 'training/a', 'training/b', 'validation/a', high=5)
  _run(tmp_path, '--zero-is-void', '--void=4')
  assert re.search(r'without a class: train \d\d\.\d%', capsys.readouterr().out)
  data_dir = str(tmp_path / 'out')
  # Without names, classes are called by their values, up to the largest.
  assert datasets.info('scenes', data_dir).class_names == ('1', '2', '3')
  records = datasets.load('scenes', 'val', data_dir, task='segmentation')
  stored = np.asarray(
      PIL.Image.open(tmp_path / 'labels/validation/a.png'), np.int32
  )
  want = np.where((stored == 0) | (stored == 4), 255, stored - 1)
  got = records.read(0)['label'][:5, :7]
  np.testing.assert_array_equal(got, want)


def test_a_damaged_label_of_another_writer_is_named(tmp_path, monkeypatch):
  _write(tmp_path, *_SPLITS)
  _run(tmp_path)
  root = str(tmp_path / 'out')
  source = datasets.open_source('scenes', 'val', root, 'segmentation')
  record = {**source._record(0), 'segmentation_mask': b'PNG'}
  monkeypatch.setattr(source, '_record', lambda row: record)
  with pytest.raises(UserError, match=r'val/a.* label image is not an image '):
    source[0]


def test_a_run_knows_its_labels(tmp_path):
  def labels():
    source = datasets.open_source(
        'scenes', 'train', str(tmp_path / 'out'), 'segmentation'
    )
    config = recipes.segmentation('rmt_compact', 'fpn')
    spec = dataset_record.of_run(config, None, {'train': source}, None)
    shutil.rmtree(tmp_path / 'out')
    return spec.splits['train'].labels

  found = []
  _write(tmp_path, *_SPLITS)
  for options in ([], [], ['--void=2'], ['--zero-is-void'], ['--values=2,1,0']):
    _run(tmp_path, *options)
    found.append(labels())
  (tmp_path / 'labels/train/a.png').write_bytes(_label(77))
  _run(tmp_path)
  found.append(labels())
  assert found[0] == found[1] and len(set(found)) == 5


def test_undivided_images_are_divided_and_their_labels_with_them(tmp_path):
  contents = _write(tmp_path, *(f'{i:02}' for i in range(20)))
  _run(tmp_path, '--val=0.25', '--test=0', '--seed=3')
  data_dir = str(tmp_path / 'out')
  sizes = []
  for split in ('train', 'val'):
    records = datasets.load('scenes', split, data_dir, task='segmentation')
    sizes.append(len(records))
    for row in range(len(records)):
      name = records.source.key(row)
      label = PIL.Image.open(io.BytesIO(contents[name][1]))
      got = records.read(row)['label'][:5, :7]
      np.testing.assert_array_equal(got, np.asarray(label))
  assert sizes == [15, 5]


def test_images_and_labels_without_each_other(tmp_path, capsys):
  _write(tmp_path, *_SPLITS)
  (tmp_path / 'labels/train/c.png').rename(tmp_path / 'labels/train/d.png')
  said = _said(tmp_path)
  assert said.startswith(
      '2 of 5 images cannot be used, the first train/c.jpg (has no label '
      f'image of the same name (see --label-ending) in {tmp_path}/labels); '
      'all are in '
  )
  listed = (tmp_path / 'out/scenes-damaged.txt').read_text('utf-8')
  assert f'{tmp_path}/labels/train/d.png\tis without an image' in listed
  _run(tmp_path, '--on-error=skip')
  said = capsys.readouterr().out
  assert 'train 2, val 1' in said
  assert 'left out: 2, the first train/c.jpg (has no label image of' in said


@pytest.mark.parametrize(
    'names, first', [(_SPLITS, 'train/'), (('a', 'b', 'sub/c'), 'a.jpg')]
)
def test_labels_by_other_names(names, first, tmp_path):
  """As CamVid's own, which end in `_L`; divided or not."""
  _write(tmp_path, *names)
  for path in list((tmp_path / 'labels').rglob('*.png')):
    path.rename(path.with_name(f'{path.stem}_L.png'))
  said = f'no image is left for train: {first}'
  same = r'has no label image of the same name \(see --label-ending\) in '
  same += f'{tmp_path}/labels'
  assert re.search(f'{said}.*{same}$', _said(tmp_path))
  said = _said(tmp_path, '--image-ending=_R')
  assert re.search(r'labels/.*_L\.png is without an image in .*/images$', said)
  said = _said(tmp_path, '--label-ending=L')
  assert said.endswith(
      f'whose name ends in L before the suffix in {tmp_path}/labels'
  )
  shares = [] if 'train/a' in names else ['--val=0.4', '--test=0']
  _run(tmp_path, '--label-ending=_L', *shares)


def test_images_and_label_images_in_one_folder(tmp_path, capsys):
  """Of several files for an image, as in Cityscapes, one has the labels."""
  contents = _write(tmp_path, *_SPLITS)
  for name in _SPLITS:
    stem = tmp_path / 'images' / name
    stem.with_suffix('.jpg').rename(f'{stem}_rgb.jpg')
    (tmp_path / 'labels' / f'{name}.png').rename(f'{stem}_ids.png')
    image_files.write(tmp_path / 'images', [f'{name}_color.png'])
  options = [f'--labels={tmp_path}/images', '--label-ending=_ids']
  said = _said(tmp_path, *options)
  assert 'has no label image whose name ends in _ids before the suffix' in said
  _run(tmp_path, *options, '--image-ending=_rgb')
  assert 'skipped: with another ending 4' in capsys.readouterr().out
  records = datasets.load(
      'scenes', 'val', str(tmp_path / 'out'), task='segmentation'
  )
  assert records.source.key(0) == 'val/a_rgb.jpg'
  label = PIL.Image.open(io.BytesIO(contents['val/a.jpg'][1]))
  got = records.read(0)['label'][:5, :7]
  np.testing.assert_array_equal(got, np.asarray(label))


def test_bad_files_are_named(tmp_path, capsys):
  _write(tmp_path, *_SPLITS, 'train/d', 'train/e', 'train/f')
  labels = tmp_path / 'labels/train'
  (labels / 'a.png').write_bytes(_label(0, size=(7, 5)))
  (labels / 'c.png').write_bytes(_label(0)[:-30])
  (labels / 'd.png').write_bytes(_label(1, high=9))
  (labels / 'e.png').write_bytes(image_files.encoded(0, 'PNG'))
  (tmp_path / 'images/train/f.jpg').write_bytes(b'')
  (tmp_path / 'names').write_text('a\nb\nc\n')
  options = [f'--classes={tmp_path}/names']
  assert _said(tmp_path, *options).startswith('5 of 7 images cannot be used')
  listed = (tmp_path / 'out/scenes-damaged.txt').read_text('utf-8')
  for line, want in zip(
      listed.splitlines(),
      (
          r'a\.jpg\tits label image has 5 x 7 pixels, the image 7 x 5',
          r'c\.jpg\tits label image is damaged',
          r'd\.jpg\tits label image has the value \d: classes are 0 to 2; 255',
          r'e\.jpg\tits label image has the mode RGB',
          r'f\.jpg\tis empty',
      ),
      strict=True,
  ):
    assert re.search(want, line)
  _run(tmp_path, *options, '--on-error=skip')
  assert 'left out: 5, the first train/a.jpg (' in capsys.readouterr().out
  report = json.loads((tmp_path / 'out/scenes/1.0.0/report.json').read_text())
  assert len(report['left_out']) == 5
  assert not (tmp_path / 'out/scenes-damaged.txt').exists()


def test_a_label_that_changes_meanwhile_stops_it(tmp_path, monkeypatch):
  from gswinrmt_jax.data.prepare import inspection

  _write(tmp_path, *_SPLITS)
  summarize = inspection.summarize

  def change(*arguments):
    (tmp_path / 'labels/val/a.png').write_bytes(_label(77))
    return summarize(*arguments)

  monkeypatch.setattr(inspection, 'summarize', change)
  assert 'labels/val/a.png has changed since' in _said(tmp_path)


@pytest.mark.parametrize(
    'change, said',
    [
        (
            lambda root: (root / 'labels/val').rename(root / 'labels/other'),
            r'images has train/, val/, .*labels train/: .* in the same way',
        ),
        (
            lambda root: (root / 'labels/train/a.tif').write_bytes(b''),
            r'train/a\.png and train/a\.tif have the same name|a\.tif and',
        ),
        (
            lambda root: (root / 'labels/validation').mkdir(),
            'labels has both val/ and validation/',
        ),
    ],
)
def test_folders_that_do_not_match(change, said, tmp_path):
  _write(tmp_path, *_SPLITS)
  change(tmp_path)
  assert re.search(said, _said(tmp_path))


@pytest.mark.parametrize(
    'text, said',
    [
        ('a\n', 'must have from 2 to 254 names, one per line: it has 1'),
        ('a\nb\na\n', "names has 'a' twice"),
        ('a\n\nb\n', 'names is empty, or has an empty line'),
        (None, 'names cannot be read'),
    ],
)
def test_names_of_classes_that_will_not_do(text, said, tmp_path):
  _write(tmp_path, *_SPLITS)
  if text is not None:
    (tmp_path / 'names').write_text(text)
  assert re.search(said, _said(tmp_path, f'--classes={tmp_path}/names'))


def test_lists_are_for_detection(tmp_path):
  _write(tmp_path, *(f'{i}' for i in range(20)))
  (tmp_path / 'val.txt').write_text('3\n4\n')
  said = _said(tmp_path, f'--val={tmp_path}/val.txt')
  assert re.search(r'--val .*val\.txt: lists are for detection; give a', said)


def test_too_few_classes_or_images(tmp_path):
  _write(tmp_path, 'train/a', high=1)
  said = _said(tmp_path)
  assert 'must have two classes or more' in said and 'but have 0; 255' in said
  _write(tmp_path / 'few', 'a', 'b')
  said = _said(tmp_path / 'few')
  assert 'images is less than half an image: add some, or change --val' in said
  said = _said(tmp_path / 'few', '--val=0.4', '--test=0.5')
  assert re.search('few/images has 2 images, of which none is left', said)


def test_the_example_can_be_prepared(tmp_path):
  code = (
      f'import pathlib, sys; sys.path.insert(0, {str(_EXAMPLE.parent)!r}); '
      f'import digit_scenes; digit_scenes.write(pathlib.Path({str(tmp_path)!r}'
      "), {'train': 6, 'val': 3})"
  )
  subprocess.run([sys.executable, '-c', code], check=True)
  _run(tmp_path, f'--classes={tmp_path}/classes.txt')
  names = datasets.info('scenes', str(tmp_path / 'out')).class_names
  assert names[:2] == ('background', '0')


def _masks(root, values, *names):
  """Writes label images that alternate between two values."""
  for name in names:
    content = np.tile(np.uint8(values), (5, 4))[:, :7]
    path = root / 'labels' / f'{name}.png'
    PIL.Image.fromarray(content).save(path)


def test_masks_of_0_and_255_are_refused(tmp_path, capsys):
  """The second class would have no pixel, and its pixels would be ignored."""
  _write(tmp_path, *_SPLITS)
  _masks(tmp_path, (0, 255), *_SPLITS)
  (tmp_path / 'names').write_bytes(b'\xef\xbb\xbfbg\nfg\n')  # byte-order mark
  names = f'--classes={tmp_path}/names'
  said = _said(tmp_path, names)
  assert said.startswith(
      "class 'fg' has no pixels in train, and 43% of the pixels are 255; 255 is"
  )
  assert '--void 255' in said
  _run(tmp_path, names, '--void=255')
  data_dir = str(tmp_path / 'out')
  assert datasets.info('scenes', data_dir).class_names == ('bg', 'fg')
  assert 'classes without pixels in train: fg' in capsys.readouterr().out


@pytest.mark.parametrize(
    'stored, options, classes, want',
    [
        ((0, 255), '--values=0,255', ('0', '255'), (0, 1)),
        ((0, 255), '--values=255,0', ('255', '0'), (1, 0)),
        ((90, 7), '--values=7,20,90 --void=1', ('7', '20', '90'), (2, 0)),
        ((90, 7), '--values=7,20 --void=90', ('7', '20'), (255, 0)),
    ],
)
def test_values_of_classes(stored, options, classes, want, tmp_path):
  _write(tmp_path, *_SPLITS)
  _masks(tmp_path, stored, *_SPLITS)
  _run(tmp_path, *options.split())
  data_dir = str(tmp_path / 'out')
  assert datasets.info('scenes', data_dir).class_names == classes
  records = datasets.load('scenes', 'val', data_dir, task='segmentation')
  np.testing.assert_array_equal(records.read(0)['label'][0, :2], want)


@pytest.mark.parametrize(
    'options, said',
    [
        ('--values=0,x', '--values 0,x: must be numbers, separated by commas'),
        ('--values=0,256', '--values 0,256: must be 2 to 254 different values'),
        ('--values=0,1,0', '--values 0,1,0: must be 2 to 254 different values'),
        (
            '--values=0,1 --void=1',
            '--values 0,1: --void 1 is the value of a cl',
        ),
        ('--values=0,1 --zero-is-void', 'use --void 0 instead of --zero-is-v'),
        ('--values=0,2', r'has the value 1: classes are 0, 2; 255 is no class'),
        ('--values=0,255', r'has the value [12]: classes are 0, 255\)'),
        ('--values=0,1,2 --classes={}', 'has 3 values, --classes 2 names: one'),
    ],
)
def test_values_that_will_not_do(options, said, tmp_path):
  _write(tmp_path, *_SPLITS)
  (tmp_path / 'names').write_text('bg\nfg\n')
  options = options.format(tmp_path / 'names').split()
  assert re.search(said, _said(tmp_path, *options))


def test_a_class_without_pixels_beside_void_ones(tmp_path, capsys):
  """All values are said, so that 255 means no class."""
  _write(tmp_path, *_SPLITS)
  _masks(tmp_path, (0, 255), *_SPLITS)
  _run(tmp_path, '--values=0,1')
  assert 'classes without pixels in train: 1' in capsys.readouterr().out


def test_sets_prepared_before_there_were_values(tmp_path, capsys):
  """They are not prepared again, and runs on them resume."""
  _write(tmp_path, *_SPLITS)
  _run(tmp_path)
  folder = tmp_path / 'out/scenes/1.0.0'

  def checksum():
    source = datasets.open_source(
        'scenes', 'train', str(tmp_path / 'out'), 'segmentation'
    )
    return source.label_checksum

  before = checksum()
  report = json.loads((folder / 'report.json').read_text('utf-8'))
  assert report['request'].pop('values') is report['request'].pop('endings')
  (folder / 'report.json').write_text(json.dumps(report), 'utf-8')
  metadata = json.loads((folder / 'metadata.json').read_text('utf-8'))
  assert metadata.pop('values') == []
  (folder / 'metadata.json').write_text(json.dumps(metadata), 'utf-8')
  _run(tmp_path)
  assert 'nothing done' in capsys.readouterr().out
  coding = 'LabelCoding(num_classes=3, void=None, zero_is_void=False)'
  content = f'{metadata["labels"]} {coding}'.encode()
  assert checksum() == before == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize('damage', ['{"void": ', None])
def test_damaged_metadata_is_named(damage, tmp_path):
  """Without it, values of no class would count as classes."""
  _write(tmp_path, *_SPLITS)
  _run(tmp_path)
  path = tmp_path / 'out/scenes/1.0.0/metadata.json'
  path.unlink()
  if damage:
    path.write_text(damage)
  with pytest.raises(UserError, match=r'\): if it is half written or '):
    datasets.open_source('scenes', 'train', str(tmp_path / 'out'))


def test_classes_without_names(tmp_path):
  """They are called by their values; 255 is not the missing ones."""
  _write(tmp_path, *_SPLITS)
  _masks(tmp_path, (0, 255), *_SPLITS)
  assert 'but have 0; 255 is void unless --values' in _said(tmp_path)
  _masks(tmp_path, (0, 4), *_SPLITS)
  assert 'no large gaps, but have 0,4; ' in _said(tmp_path)
  _masks(tmp_path, (4, 9), *_SPLITS)
  assert 'but have 4,9; ' in _said(tmp_path, '--zero-is-void')
  _masks(tmp_path, (0, 3), *_SPLITS)
  _run(tmp_path, f'--dir={tmp_path}/half')
  _masks(tmp_path, (1, 2), *_SPLITS)
  _run(tmp_path, '--zero-is-void')
  names = datasets.info('scenes', str(tmp_path / 'out')).class_names
  assert names == ('1', '2')


def test_the_images_are_no_label_images(tmp_path):
  _write(tmp_path, *_SPLITS)
  said = _said(tmp_path, f'--labels={tmp_path}/images/../images')
  assert said.startswith('--labels is the folder of --images, ')
  assert 'what their names end in, by --label-ending' in said


def test_other_images_or_options_are_not_already_prepared(tmp_path, capsys):
  _write(tmp_path, *(f'{i:02}' for i in range(20)))
  _run(tmp_path)
  report = tmp_path / 'out/scenes/1.0.0/report.json'

  def refused(*options):
    before = report.read_bytes()
    with pytest.raises(
        UserError, match='--replace, or choose another'
    ) as caught:
      _run(tmp_path, *options)
    assert report.read_bytes() == before
    return str(caught.value)

  _run(tmp_path)
  assert capsys.readouterr().out.endswith('already prepared in '
      f'{report.parent}, nothing done\n')  # fmt: skip
  label = tmp_path / 'labels/07.png'
  os.utime(label, ns=(0, report.stat().st_mtime_ns + 1))
  _run(tmp_path)
  said = f'  warning: {label} changed later; --replace prepares it again\n'
  assert capsys.readouterr().out.endswith(f'nothing done\n{said}')
  moved = (tmp_path / 'images').rename(tmp_path / 'moved')
  _run(tmp_path, f'--images={moved}')
  assert capsys.readouterr().out.endswith(f'nothing done\n{said}')
  moved.rename(tmp_path / 'images')
  assert 'with other shares, splits, names or sizes of files: ' in refused(
      '--val=0.2'
  )
  assert 'with other seed, splits' in refused('--seed=1')
  assert 'with other void: ' in refused('--void=2')
  assert 'with other zero_is_void: ' in refused('--zero-is-void')
  assert 'with other values, class names: ' in refused('--values=0,1,2')
  names = f'--classes={tmp_path}/names'
  (tmp_path / 'names').write_text('x\ny\nz\n')
  assert 'with other class names: ' in refused(names)
  _run(tmp_path, names, '--replace')
  (tmp_path / 'names').write_text('x\nz\ny\n')
  assert 'with other class names' in refused(names)
  (tmp_path / 'names').write_text('x\ny\nz\n')
  image_files.write(tmp_path / 'images', ['20.jpg'])
  (tmp_path / 'labels/20.png').write_bytes(_label(3))
  assert 'number of images' in refused(names)
  _run(tmp_path, names, '--replace')
  assert len(json.loads(report.read_text())['splits']) == 3
  assert os.listdir(report.parents[1]) == ['1.0.0']
  (tmp_path / 'labels/20.png').write_bytes(_label(3, size=(50, 70)))
  assert 'with other splits, names or sizes of files' in refused(names)
