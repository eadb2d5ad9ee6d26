"""Tests what a user gets from a detector: arrays, text, JSON, pictures."""

import io
import itertools
import json
import sys

from flax import traverse_util
import jax
import numpy as np
import PIL.Image
import pytest
import tiny_detectors

from gswinrmt_jax.commands import arguments, main
from gswinrmt_jax.data import digits
from gswinrmt_jax.deploy import detections, detector, export, load
from gswinrmt_jax.deploy.detections import ObjectDetections
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal


def _noise(height, width):
  rng = np.random.default_rng(height)
  # Bright blocks: what a smaller image of it shows, too.
  blocks = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
  return blocks.repeat(8, 0).repeat(8, 1)[:height, :width]


def _weights():
  return tiny_detectors.weights('mask', fit_within=(96, 64))


@pytest.fixture(name='loaded', scope='module')
def _loaded():
  return load.from_weights(_weights())


def test_images_of_any_size_in_one_program(loaded):
  """They find what the model alone finds in the resized image."""
  before = detector._detect._cache_size()
  found = loaded.predict(
      [_noise(64, 90), _noise(128, 180), _noise(20, 40)], least_score=0.0
  )
  assert detector._detect._cache_size() <= before + 1
  for one, (height, width) in zip(
      found, [(64, 90), (128, 180), (20, 40)], strict=True
  ):
    assert one.pixels.shape == (height, width, 3)
    assert one.boxes.shape == (6, 4) and one.boxes.dtype == np.float32
    assert one.masks.shape == (6, height, width) and one.masks.dtype == bool
    assert (one.boxes >= 0).all()
    assert (one.boxes <= [width, height] * 2).all()
    assert one.boxes[:, 2:].max(0) == pytest.approx([width, height], rel=0.3)
    assert (np.diff(one.scores) <= 0).all() and one.scores.all()

  bare = jax.jit(loaded._pixel_model.apply)
  want = jax.device_get(bare(loaded.variables, _noise(64, 90)[None]))
  np.testing.assert_allclose(found[0].scores, want.scores[0], rtol=1e-4)
  np.testing.assert_array_equal(found[0].labels, want.labels[0])
  np.testing.assert_allclose(found[0].boxes, want.boxes[0], atol=1e-2)
  np.testing.assert_allclose(found[0].cells, want.masks[0], atol=1e-4)


def test_boxes_are_scaled_back_along_each_axis(monkeypatch):
  """33 x 40 pixels within 20 x 20 are 17 x 20: by 33 / 17 and 40 / 20."""
  loaded = load.from_weights(
      tiny_detectors.weights('mask', fit_within=(20, 20))
  )
  found = {
      'boxes': np.array([[[1.0, 2, 17, 20]]]),
      'scores': np.ones((1, 1)),
      'labels': np.zeros((1, 1), np.int32),
  }
  monkeypatch.setattr(detector, '_detect', lambda *_: (found, np.array(True)))
  (box,) = loaded.predict(_noise(40, 33)).boxes
  np.testing.assert_allclose(box, [33 / 17, 4, 33, 40], rtol=1e-6)


def test_few_canvases(loaded):
  """One for each orientation or, without bounds, two in an octave of sides."""
  sizes = np.random.default_rng(0).integers(40, 1000, (500, 2)).tolist()
  assert {loaded._canvas(*size) for size in sizes} == {(64, 96), (96, 64)}
  sides = {detector._rounded_up(side) for side in range(1, 1025)}
  assert sides == {64, 128, 192, 256, 384, 512, 768, 1024}
  assert all(
      0 <= detector._rounded_up(n) - n < max(64, n / 2) for n in range(1, 3000)
  )


def test_least_score(loaded):
  image = _noise(64, 90)
  every = loaded.predict(image, least_score=0.0)
  least = float(every.scores[2])
  kept = loaded.predict(image, least_score=least)
  assert len(kept) == (every.scores >= least).sum() < len(every)
  assert len(loaded.predict(image, least_score=1.0)) == 0
  with pytest.raises(ValueError, match='least_score is 2: must be a number in'):
    loaded.predict(image, 2)
  with pytest.raises(ValueError, match='must be one number, the shorter side'):
    detector.LoadedDetector(tiny_detectors.weights('mask'), (3, 4))


def test_the_repr_has_no_pixels(loaded):
  found = loaded.predict(_noise(64, 90), least_score=0.0)
  said = repr(found)
  assert 'boxes=array' in said
  assert 'pixels=' not in said and 'cells=' not in said


def test_damaged_weights_do_not_find_nothing():
  weights = _weights()
  weights.variables['params']['head']['box_heads_0']['logits']['bias'] *= np.nan
  loaded = detector.LoadedDetector(weights)
  with pytest.raises(UserError, match='image: the logits of a tiny mask are'):
    loaded.predict(_noise(64, 90))


@pytest.mark.parametrize(
    ('head', 'last'),
    [
        ('retina', {'classes', 'boxes'}),
        ('mask', {'logits', 'deltas'}),
    ],
)
def test_the_last_layers_of_a_head_are_watched(head, last):
  params = tiny_detectors.weights(head, name='rmt_swin_t').variables['params']
  paths = traverse_util.flatten_dict(params['head']).keys()
  assert {*itertools.chain(*paths)} & detector._LAST == last


def _digits(times=1):
  """Returns a scene of digits with its truth as detections."""
  image, found = max(digits.read_scenes('test'), key=lambda x: len(x[1]))
  boxes, cells = [], []
  for _, ink in found:
    rows, columns = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    box = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    boxes.append(np.float32(box) * times)
    inside = PIL.Image.fromarray(ink).crop(box).convert('L')
    cells.append(np.asarray(inside.resize((28, 28)), np.float32) / 255)
  return ObjectDetections(
      'scene.png',
      image.repeat(times, 0).repeat(times, 1),
      np.array(boxes),
      np.linspace(0.95, 0.5, len(boxes), dtype=np.float32),
      np.array([label for label, _ in found], np.int32),
      digits.CLASSES,
      np.array(cells),
  )


def test_cocos_json(tmp_path):
  """pycocotools reads it as a data set and as results, masks included."""
  coco = pytest.importorskip('pycocotools.coco')
  one, empty = _digits(), _digits()
  empty = ObjectDetections(
      'empty.png',
      one.pixels,
      one.boxes[:0],
      one.scores[:0],
      one.labels[:0],
      one.names,
      one.cells[:0],
  )
  contents = detections.to_coco(iter([empty, one]), one.names)
  path = tmp_path / 'objects.json'
  path.write_text(json.dumps(contents))
  read = coco.COCO(path)
  assert [x['file_name'] for x in read.loadImgs(read.getImgIds())] == [
      'empty.png',
      'scene.png',
  ]
  annotations = read.loadAnns(read.getAnnIds(imgIds=2))
  assert len(annotations) == len(one) and not read.getAnnIds(imgIds=1)
  for row, found in enumerate(annotations):
    x, y, width, height = found['bbox']
    corners = [x, y, x + width, y + height]
    np.testing.assert_allclose(corners, one.boxes[row])
    (category,) = read.loadCats(found['category_id'])
    assert category['name'] == one.names[one.labels[row]]
    mask = read.annToMask(found)
    np.testing.assert_array_equal(mask, one.masks[row])
    assert found['area'] == mask.sum()
    assert found['score'] == pytest.approx(one.scores[row])
  assert len(read.loadRes(contents['annotations']).anns) == len(one)


def test_the_text():
  one = _digits()
  first, *rows = str(one).splitlines()
  assert first == 'scene.png' and len(rows) == len(one)
  corners = [str(round(float(side))) for side in one.boxes[0]]
  name = one.names[one.labels[0]]
  assert rows[0].split() == ['95.0%', *corners, name]


@pytest.mark.parametrize('times', [1, 20])
def test_a_picture(times):
  """Texts are of a readable size, and cover neither texts nor objects."""
  one = _digits(times)
  drawn, height = one.picture(), one.pixels.shape[0]
  scale = drawn.width // one.pixels.shape[1]
  assert min(drawn.size) >= 240
  margin = (drawn.height - scale * height) // 2
  size = margin // 1.5
  assert size >= 12 and 25 <= drawn.height / size <= 60
  inside = np.asarray(drawn)[margin:-margin]
  want = one.pixels.repeat(scale, 0).repeat(scale, 1)
  for box, mask in zip(one.boxes, one.masks, strict=True):
    # Inside a box, only pixels of the mask are coloured.
    line = max(1, int(size) // 8)
    x0, y0, x1, y1 = (int(side) * scale for side in box)
    place = np.s_[y0 + 3 * line : y1 - 3 * line, x0 + 3 * line : x1 - 3 * line]
    changed = (inside[place] != want[place]).any(-1)
    wide = mask.repeat(scale, 0).repeat(scale, 1)[place]
    np.testing.assert_array_equal(changed, wide & changed)
    assert changed.sum() > 0.9 * wide.sum()


def test_a_thin_strip_is_not_enlarged_without_end():
  empty = np.zeros((0, 4), np.float32), np.zeros(0), np.zeros(0, np.int32)
  pixels = np.zeros((4, 900, 3), np.uint8)
  strip = ObjectDetections('strip.png', pixels, *empty, digits.CLASSES, None)
  assert strip.picture().width == 1800


def test_crowded_texts():
  rng = np.random.default_rng(0)
  low = rng.uniform(0, 200, (60, 2))
  boxes = np.concatenate([low, low + rng.uniform(10, 60, (60, 2))], 1)
  taken = []
  for box in boxes:
    place = detections._place(box, (50, 14), boxes, taken, (260, 260))
    if place is None:
      continue
    assert (place >= 0).all() and (place <= 260).all()
    if taken:
      assert not detections._shared(place, np.array(taken)).any()
    taken.append(place)
  assert 10 < len(taken) < 60
  # Above the box if there is room, else where it covers no box.
  (alone,) = (
      detections._place(box, (50, 14), np.array([box]), [], (260, 260))
      for box in [np.array([30.0, 0, 90, 100])]
  )
  assert alone[1] > 100


@pytest.fixture(name='command')
def _command(loaded, monkeypatch):
  """Lets the command predict with the detector, which is compiled."""
  monkeypatch.setattr(
      arguments, 'load_weights', lambda args: tiny_detectors.weights('mask')
  )
  monkeypatch.setattr(load, 'from_weights', lambda *args, **how: loaded)


def test_the_command(command, tmp_path, capsys):
  """Of a folder: a picture each, the objects of all, and what was skipped."""
  images, out = tmp_path / 'images', tmp_path / 'out'
  (images / 'more').mkdir(parents=True)
  for name, size in (('a.png', (50, 60)), ('more/a.png', (40, 90))):
    PIL.Image.fromarray(_noise(*size)).save(images / name)
  (images / 'b.png').write_text('no image')
  call = ['predict', 'r', str(images), f'--out={out}', '--least-score=0.001']
  assert main.main(call) == 1
  printed = capsys.readouterr()
  assert printed.out.count('.png') == 2 and 'b.png' in printed.err
  assert sorted(path.name for path in out.iterdir()) == [
      'a_2_objects.png',
      'a_objects.png',
      'objects.json',
  ]
  contents = json.loads((out / 'objects.json').read_text())
  assert [x['width'] for x in contents['images']] == [60, 90]
  assert [x['name'] for x in contents['categories']] == [*tiny_detectors.NAMES]
  assert printed.out.count('%') == len(contents['annotations']) > 0
  (images / 'b.png').unlink()
  assert main.main([*call, '--json']) == 0
  assert json.loads(capsys.readouterr().out) == contents
  assert main.main([*call[:-1], '--least-score=1']) == 0
  assert capsys.readouterr().err.endswith('none of at least --least-score 1\n')
  assert main.main(call) == 0
  capsys.readouterr()
  (images / 'b.png').write_text('no image')
  assert main.main(['predict', 'r', str(images / 'b.png'), f'--out={out}']) == 1
  assert capsys.readouterr().err.endswith('no image could be read\n')
  assert json.loads((out / 'objects.json').read_text()) == contents
  # Beside the images, it may be what the user knows of them.
  (images / 'objects.json').write_text('mine')
  assert main.main([*call[:2], str(images), f'--out={images}']) == 2
  said = f'{images}/objects.json is there already, beside the images'
  assert said in capsys.readouterr().err
  assert (images / 'objects.json').read_text() == 'mine'


@pytest.mark.parametrize(
    ('option', 'said'),
    [
        ('--top=3', '--top is for classifiers'),
        ('--maps=x', '--maps is for classifiers'),
        (
            '--out=x.csv',
            '--out is x.csv: must be a folder for a detector, which writes '
            'files into it',
        ),
        ('--least-score=1.5', "--least-score is '1.5': must be from 0 to 1"),
    ],
)
def test_mistakes_are_one_line(option, said, command, capsys):
  assert main.main(['predict', 'r', 'a.png', option]) == 2
  assert capsys.readouterr().err == f'gswinrmt: {said}\n'


def test_masks_without_pycocotools_are_refused_at_the_start(
    command, monkeypatch, capsys
):
  """Before any image is read; RetinaNet's `objects.json` does not need it."""
  monkeypatch.setitem(sys.modules, 'pycocotools.mask', None)
  monkeypatch.setattr(load, 'from_weights', None)
  assert main.main(['predict', 'r', 'a.png']) == 2
  assert capsys.readouterr().err == (
      'gswinrmt: detection needs pycocotools: pip install '
      '"gswinrmt_jax[detection]"\n'
  )
  monkeypatch.setattr(
      arguments, 'load_weights', lambda args: tiny_detectors.weights('retina')
  )
  with pytest.raises(TypeError, match='NoneType'):  # asks for the model next
    main.main(['predict', 'r', 'a.png'])


@pytest.mark.parametrize(
    'head', ['retina', pytest.param('mask', marks=pytest.mark.slow)]
)
def test_a_program_with_suppression(head, tmp_path, as_users_run):
  """Any number of images, unknown to jaxtyping; those of the check are found.

  `tests/deploy/export_test.py` exports the convolutions of a backbone.
  """
  pytest.importorskip('flatbuffers')
  weights = tiny_detectors.weights(head, name='rmt_swin_t')
  said = io.StringIO()
  path = export.export(weights, 'stablehlo', tmp_path / 'a', Terminal(said))
  assert 'detections differ by ' in said.getvalue()
  text = (path.parent / 'README.md').read_text()
  assert 'placed in it as docs/weights.md of gswinrmt_jax says' in text
  read = jax.export.deserialize(path.read_bytes())
  outputs = jax.tree.unflatten(read.out_tree, read.out_avals)
  assert ('masks' in outputs) == (head == 'mask')
  assert outputs.keys() - {'masks'} == {'boxes', 'scores', 'labels'}
  batches = {str(x.shape[0]) for x in (*read.in_avals, *outputs.values())}
  assert batches == {'b'}
  if head == 'mask':  # Another number of images is another compilation.
    pixels = export.sample_pixels(weights)
    want = export.model_outputs(weights)
    got = jax.device_get(read.call(pixels[[1, 0, 1]]))
    assert got.keys() == outputs.keys()
    for name, array in got.items():
      np.testing.assert_allclose(
          array, want[name][[1, 0, 1]], rtol=1e-3, atol=1e-3, err_msg=name
      )
  with pytest.raises(UserError, match='choose --format=stablehlo'):
    export.export(weights, 'onnx', tmp_path / 'b')
