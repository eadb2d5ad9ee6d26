"""Tests prediction with the digits model that ships with the package."""

import csv
import dataclasses
import io
import json
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import processes
import pytest
import random_variables

from gswinrmt_jax import terminal as terminal_lib
from gswinrmt_jax.commands import main
from gswinrmt_jax.commands import predict as predict_command
from gswinrmt_jax.data import datasets, pictures
from gswinrmt_jax.deploy import classifier, load
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import load as weights_lib
from gswinrmt_jax.weights import safetensors_file

_NAME = 'digits_small'
_RUN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'
_EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples' / 'images'


@pytest.fixture(scope='module')
def loaded():
  return load.load_model(_NAME)


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  """Returns a file of random weights: two stages of one block, for digits."""
  card = weights_lib.read_card(_NAME)
  sizes = {
      'widths': (8, 16),
      'depths': (1, 1),
      'num_heads': (1, 1),
      'mlp_ratios': (1.0, 1.0),
      'decay_ranges': (4.0, 4.0),
      'layer_scale': (0.1, 0.1),
  }
  card = dataclasses.replace(card, fields={**card.fields, **sizes})
  variables = random_variables.nested(card.make_model(), (1, 32, 32, 3))
  path = tmp_path_factory.mktemp('small') / 'model.safetensors'
  safetensors_file.write(path, variables, card)
  return path


@pytest.fixture(autouse=True)
def _five_at_a_time(monkeypatch):
  """Lets all tests share two programs, for five images and for one."""
  monkeypatch.setattr(classifier, '_BATCH', 5)


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
  """Returns image files of twelve digits, and their labels."""
  folder = tmp_path_factory.mktemp('digits')
  test = datasets.load('digits', 'test')
  for index in range(12):
    PIL.Image.fromarray(test.image[index]).save(folder / f'{index:02d}.png')
  return sorted(folder.iterdir()), test.label[:12].tolist()


def test_digits_are_named(loaded, digits):
  paths, labels = digits
  found = loaded.predict(paths, 3)
  assert [one.image for one in found] == list(map(str, paths))
  assert [one.labels[0] for one in found] == labels
  for one in found:
    assert len(one.labels) == 3
    assert sorted(one.probabilities, reverse=True) == list(one.probabilities)
    assert one.names == tuple(str(label) for label in one.labels)
  everything = loaded.predict(paths[0], 99)
  assert sum(everything.probabilities) == pytest.approx(1, abs=1e-5)


def test_the_examples_are_what_their_names_say(loaded):
  paths = sorted(_EXAMPLES.glob('*.png'))
  assert len(paths) == 5
  for path, one in zip(paths, loaded.predict(paths), strict=True):
    assert path.stem == f'digit_{one.names[0]}'


def test_numbers_of_images_share_programs(loaded, monkeypatch):
  monkeypatch.setattr(classifier, '_BATCH', 32)
  paths = sorted(_EXAMPLES.glob('*.png'))
  want = loaded.logits(paths)
  compiled = classifier._apply._cache_size()
  for count in (6, 7, 8):
    found = loaded.logits([*paths, *paths][:count])
    np.testing.assert_array_equal(found, [*want, *want][:count])
  assert classifier._apply._cache_size() == compiled
  sizes = [*map(classifier._size_of, (1, 2, 3, 4, 17, 32, 33, 999))]
  assert sizes == [1, 2, 4, 4, 32, 32, 32, 32]


def test_other_weights_use_the_compiled_program(loaded, digits):
  path = digits[0][0]
  want = 2 * loaded.logits(path)
  compiled = classifier._apply._cache_size()
  found = weights_lib.load(_NAME)
  params = dict(found.variables['params'])
  params['head'] = jax.tree.map(lambda x: 2 * x, params['head'])
  variables = {**found.variables, 'params': params}
  other = load.from_weights(dataclasses.replace(found, variables=variables))
  np.testing.assert_array_equal(other.logits(path), want)
  assert classifier._apply._cache_size() == compiled


def test_a_path_an_image_and_an_array_are_one(loaded, digits):
  path = digits[0][0]
  with PIL.Image.open(path) as opened:
    image = opened.convert('RGB')
  pixels = np.asarray(image)
  want = loaded.predict(path)
  content = pathlib.Path(path).read_bytes()
  for one in (str(path), content, image, pixels, jnp.asarray(pixels)):
    assert loaded.predict(one).probabilities == want.probabilities
  (many,) = loaded.predict(pixels[None])
  assert many.probabilities == want.probabilities
  assert loaded.predict([]) == []
  for method in (loaded.logits, loaded.embed, loaded.features):
    with pytest.raises(UserError, match='no images were given'):
      method([])


def test_an_opened_image_is_seen_as_its_file_is(loaded, tmp_path):
  ramp = np.linspace(0, 1, 32 * 32).reshape(32, 32)
  deep = PIL.Image.fromarray(np.uint16(65535 * ramp))
  red = PIL.Image.new('RGBA', (32, 32), (200, 30, 10, 90))
  half = PIL.Image.fromarray(np.uint8(255 * ramp)).crop((0, 0, 20, 32))
  turned = PIL.Image.Exif()
  turned[0x0112] = 6
  files = {
      'deep.png': (deep, {}),
      'float.tiff': (PIL.Image.fromarray(np.float32(ramp)), {}),
      'clear.png': (red, {}),
      'turned.png': (half, {'exif': turned}),
  }
  for name, (image, options) in files.items():
    image.save(tmp_path / name, **options)
    want = loaded.pixels(tmp_path / name)
    read = pictures.read(tmp_path / name)
    np.testing.assert_array_equal(loaded.pixels(read), want, err_msg=name)
    with PIL.Image.open(tmp_path / name) as opened:
      before, turn = opened.copy(), opened.getexif().get(0x0112)
      np.testing.assert_array_equal(loaded.pixels(opened), want, err_msg=name)
      assert (opened.mode, opened.size) == (before.mode, before.size)
      assert opened.getexif().get(0x0112) == turn
      np.testing.assert_array_equal(np.asarray(opened), np.asarray(before))


def test_a_damaged_image_that_is_open_is_one_line(loaded, tmp_path):
  path = tmp_path / 'a.png'
  noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
  PIL.Image.fromarray(noise).save(path)
  path.write_bytes(path.read_bytes()[:3000])
  with PIL.Image.open(path) as opened:
    with pytest.raises(UserError, match=r'^an image is damaged: '):
      loaded.predict(opened)
  with pytest.raises(UserError, match=r'^an image is damaged: '):
    loaded.predict(path.read_bytes())
  said = []
  assert loaded.predict(path, skip=said.append) is None
  assert loaded.predict([path], skip=said.append) == []
  assert said == 2 * [said[0]] and f'{path} is damaged: ' in said[0]


def test_what_is_preprocessed_is_the_models_input(loaded, digits):
  """By hand, the input is (pixels / 255 - mean) / std."""
  path = digits[0][0]
  x = loaded.preprocess(path)
  with PIL.Image.open(path) as opened:
    pixels = np.asarray(opened.convert('RGB'), np.float32)
  mean, std = np.float32(loaded.card.mean), np.float32(loaded.card.std)
  want = (pixels / 255 - mean) / std
  assert x.dtype == np.float32 and x.shape == (32, 32, 3)
  np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-6)
  apply = jax.jit(loaded.model.apply, static_argnames='train')
  logits = apply(loaded.variables, jnp.asarray(x)[None], train=False)
  np.testing.assert_allclose(loaded.logits(path), logits, rtol=1e-5, atol=1e-5)
  probabilities = jax.nn.softmax(logits)[0]
  found = loaded.predict(path, 10)
  np.testing.assert_allclose(
      found.probabilities, probabilities[np.array(found.labels)], atol=1e-6
  )


def test_a_prediction_prints_as_a_table():
  one = classifier.Prediction('a.png', (2, 7), ('cat', 'dog'), (0.875, 0.125))
  assert str(one) == 'a.png\n   87.50%  cat\n   12.50%  dog'


def test_logits_and_embeddings(loaded, digits):
  """The logits are a linear map of the embeddings, in batches of any size."""
  paths, _ = digits
  logits, vectors = loaded.logits(paths), loaded.embed(paths)
  assert logits.shape == (12, 10) and vectors.shape == (12, 64)
  assert logits.dtype == vectors.dtype == np.float32
  head = jax.tree.map(np.asarray, loaded.variables['params']['head'])
  np.testing.assert_allclose(
      vectors @ head['kernel'] + head['bias'], logits, rtol=1e-5, atol=1e-5
  )
  np.testing.assert_allclose(loaded.logits(paths[0]), logits[:1], atol=1e-5)


def test_logits_that_are_not_finite_are_no_class(tmp_path, digits, capsys):
  found = weights_lib.load(_NAME)
  params = jax.tree.map(np.array, dict(found.variables['params']))
  params['stem']['conv0']['kernel'][0, 0, 0, 0] = np.nan
  variables = {**found.variables, 'params': params}
  path = tmp_path / 'a.safetensors'
  safetensors_file.write(path, variables, found.card)
  image = str(digits[0][0])
  assert main.main(['predict', str(path), image, '--json']) == 2
  printed = capsys.readouterr()
  said = printed.err.splitlines()
  assert not printed.out
  assert 'not finite, in params/stem/conv0/kernel' in said[0]
  assert f'{image}: the logits of {path} are not finite' in said[-1]


@pytest.mark.parametrize(
    'image',
    [
        np.zeros((32, 32, 3), np.float32),  # normalised, or in 0 to 1
        np.full((32, 32, 3), 200.0),
        np.zeros((32, 32, 3), np.int32),
        np.zeros((32, 32), np.uint8),
        np.zeros((1, 32, 32, 3), np.float32),
    ],
)
@pytest.mark.parametrize('method', ['predict', 'features'])
def test_images_that_are_no_pixels_are_refused(loaded, image, method):
  with pytest.raises(ValueError, match=r'must be pixels from 0 to 255, uint8'):
    getattr(loaded, method)(image)
  with pytest.raises(ValueError, match=r'must be pixels from 0 to 255, uint8'):
    loaded.preprocess(image)


def test_one_image_is_no_sequence(loaded):
  for one in ('digit.png', np.zeros((32, 32, 3), np.uint8)):
    with pytest.raises(ValueError, match='images is one image: must be a seq'):
      next(loaded.predict_each(one))


def test_images_of_any_size(loaded):
  """A model of another size: `docs_python_test`."""
  tall = PIL.Image.new('RGB', (50, 90))
  assert loaded.pixels(tall).shape == (32, 32, 3)


def test_another_image_size_is_said_once(small, digits, capsys):
  for size, lines in ((None, 0), (32, 0), (48, 1)):
    load.load_model(_NAME, image_size=size)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == lines
  assert said[0].startswith(f'{_NAME} was trained for 32 x 32 pixels: at 48')
  arguments = ['predict', str(small), str(digits[0][0]), '--image-size=40']
  assert main.main(arguments) == 0
  printed = capsys.readouterr()
  assert 'trained for 32 x 32 pixels: at 40 x 40' in printed.err
  assert 'trained for' not in printed.out


def test_names_of_a_mac_and_names_that_are_not_utf8(tmp_path):
  """A folder's umlaut may be two characters; a name may have any bytes."""
  one = types.SimpleNamespace(image='x.png', to_dict=lambda: {'image': 'x.png'})
  row = predict_command._row(one, {'x.png': ('Ka\u0308fer',)}, {'Käfer': 'K'})
  assert row['true_class'] == 'K'
  row |= {'image': 'b\udce4r.png', 'predictions': []}
  predict_command._write_table(tmp_path / 'a.csv', [row], 0)
  assert (tmp_path / 'a.csv').read_text().splitlines()[1] == r'b\udce4r.png,K'


def test_pictures_of_an_earlier_call_are_no_images(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = 'a', 'predictions/b_labels', 'predictions/own', 'c/predictions/d'
  names += 'maps/a/attention_reach', 'maps/a/gate', 'maps/a/grad_cam'
  names += 'maps/a/golden_gate', 'doors/gate'
  for name in names:
    path = tmp_path / f'{name}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new('L', (1, 1)).save(path)
  out = ['predictions', 'all.csv']
  found = ['a', 'c/predictions/d', 'doors/gate', 'maps/a/golden_gate']
  images, left_out = predict_command._find(['.'], out)
  assert [*images] == [f'{name}.png' for name in (*found, 'predictions/own')]
  assert left_out == {'pictures of an earlier call': 4}
  found = [f'{name}.png' for name in names[1:3]]
  images, _ = predict_command._find(['predictions'], out)
  assert [*images] == found
  assert len(predict_command._find(['maps/a'], out)[0]) == 4
  # The folder that is named may have the name of the class, too.
  assert images[found[0]] == ('predictions',)
  # So it has if one of its images is named once more.
  again, _ = predict_command._find(['predictions', found[0]], out)
  assert again == images


def test_the_command(loaded, digits, tmp_path, capsys, monkeypatch):
  """`test_an_unreadable_image_has_a_line_of_its_own` loads what it names."""
  monkeypatch.setattr(load, 'from_weights', lambda *args, warn: loaded)
  paths, labels = digits
  broken = tmp_path / 'broken.png'
  broken.write_bytes(b'not an image')
  arguments = ['predict', _NAME, str(paths[0]), '--top=2']
  assert main.main(arguments) == 0
  printed = capsys.readouterr()
  lines = printed.out.splitlines()
  assert lines[0] == str(paths[0]) and len(lines) == 3
  assert lines[1].split()[1] == str(labels[0])
  assert 'weights: digits_small' in printed.err

  monkeypatch.setattr(sys, 'stderr', None)  # as with 2>&-
  assert main.main([*arguments, str(broken), '--json']) == 1
  assert len(json.loads(capsys.readouterr().out)) == 1
  monkeypatch.undo()
  monkeypatch.setattr(load, 'from_weights', lambda *args, warn: loaded)
  assert main.main([*arguments, str(broken), '--json']) == 1
  printed = capsys.readouterr()
  assert 'broken.png' in printed.err
  report = json.loads(printed.out)
  assert [one['image'] for one in report] == [str(paths[0])]
  assert report[0]['predictions'][0]['label'] == labels[0]


def test_names_cannot_steer_the_terminal(
    loaded, digits, tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr(load, 'from_weights', lambda *args, warn: loaded)
  path = tmp_path / 'a\x1b[31m\nb.png'
  path.write_bytes(digits[0][0].read_bytes())
  assert main.main(['predict', _NAME, str(tmp_path)]) == 0
  printed = capsys.readouterr().out.splitlines()
  assert printed[0] == f'{tmp_path}/a\\x1b[31m\\nb.png'
  assert len(printed) == 6


@pytest.fixture
def sorted_digits(digits, tmp_path):
  """Returns a folder of two classes, other files, and a damaged image."""
  paths, labels = digits
  folder = tmp_path / 'sorted'
  for path, label in zip(paths, labels, strict=True):
    below = folder / ('notes' if label > 7 else f'{label}/deep')
    below.mkdir(parents=True, exist_ok=True)
    (below / path.name).write_bytes(path.read_bytes())
  (folder / 'readme.txt').write_text('x')
  (folder / 'cut.png').write_bytes(paths[0].read_bytes()[:60])
  return folder


def test_a_folder_is_predicted_into_a_table(
    loaded, digits, sorted_digits, tmp_path, capsys, monkeypatch
):
  """In the order of names; the innermost folder that is a class is true."""
  monkeypatch.setattr(load, 'from_weights', lambda *args, warn: loaded)
  paths, labels = digits
  # One image in the folder of another class: its prediction is wrong.
  wrong = next(str(label) for label in range(8) if label != labels[0])
  (sorted_digits / wrong).mkdir(exist_ok=True)
  (sorted_digits / wrong / 'odd.png').write_bytes(paths[0].read_bytes())
  base = ['predict', _NAME, str(sorted_digits), '--top=2']
  table = tmp_path / 'new' / 'inner' / 'all.csv'
  assert main.main([*base, f'--out={table}']) == 1  # the cut image
  said = capsys.readouterr()
  assert not said.out and 'cut.png is damaged' in said.err
  assert f'predictions of 13 images: {table}' in said.err
  before = table.read_bytes()
  cut = str(sorted_digits / 'cut.png')
  assert main.main(['predict', _NAME, cut, f'--out={table}']) == 1
  assert capsys.readouterr().err.endswith('no image could be read\n')
  assert table.read_bytes() == before
  with table.open(newline='') as file:
    rows = list(csv.DictReader(file))
  head = 'image true_class class_1 probability_1 class_2 probability_2'
  assert list(rows[0]) == head.split()
  assert len(rows) == 13
  names = [row['image'] for row in rows]
  assert names == sorted(names)
  known = [row for row in rows if row['true_class']]
  for row in rows:
    inside = pathlib.Path(row['image']).relative_to(sorted_digits).parts
    assert row['true_class'] == ('' if inside[0] == 'notes' else inside[0])
  right = [row['class_1'] == row['true_class'] for row in known]
  assert sum(right) == len(known) - 1
  share = f'accuracy: {sum(right) / len(known):.2%} of {len(known)} images'
  assert share in said.err
  # There are ten classes.
  assert main.main([*base[:3], '--top=11', f'--out={tmp_path}/ten.csv']) == 1
  with (tmp_path / 'ten.csv').open(newline='') as file:
    head, *filled = csv.reader(file)
  assert head[-1] == 'probability_10'
  assert {len(row) for row in filled} == {len(head)}
  (tmp_path / 'ten.csv').unlink()

  assert {path.name for path in tmp_path.iterdir()} == {'new', 'sorted'}


def test_images_are_read_in_batches(loaded, digits):
  """A folder may have more images than fit in memory."""
  paths, read = digits[0], []
  found = loaded.predict_each(read.append(path) or path for path in paths)
  next(found)
  assert read == paths[:5]
  assert [one.image for one in found] == list(map(str, paths[1:]))


def test_an_unreadable_image_has_a_line_of_its_own(monkeypatch):
  """The progress line of the prediction ends before it."""
  screen = io.StringIO()

  def predict_each(self, images, top, skip):
    processes.until(lambda: 'predicting ...' in screen.getvalue())
    skip('a.png does not exist')
    yield from ()

  monkeypatch.setattr(sys, 'stderr', screen)
  monkeypatch.setattr(terminal_lib, '_PATIENCE', 0)
  monkeypatch.setattr(classifier.LoadedClassifier, 'predict_each', predict_each)
  assert main.main(['predict', _NAME, 'a.png']) == 1
  assert screen.getvalue().splitlines()[1:] == [
      'Compiling the model and predicting ...',
      'gswinrmt: a.png does not exist',
  ]


def test_maps_beside_the_prediction(small, digits, tmp_path, capsys):
  path = str(digits[0][0])
  out = tmp_path / 'maps'
  arguments = ['predict', str(small), path, f'--maps={out}', '--point=20,9']
  assert main.main(arguments) == 0
  drawn = sorted(file.name for file in (out / '00').iterdir())
  assert drawn == [
      'attention_reach.png',
      'decay_kernels.png',
      'gate.png',
      'grad_cam.png',
  ]
  assert 'maps in' in capsys.readouterr().err
  assert main.main([*arguments[:-1], '--point=20,99']) == 2
  said = 'point 20, 99 is outside of the 32 x 32 pixels that the model sees'
  assert said in capsys.readouterr().err


def test_maps_are_of_what_the_model_sees(small, digits, tmp_path, monkeypatch):
  seen = []

  def compute(model, variables, image, **how):
    seen.append(image)
    raise StopIteration

  monkeypatch.setattr(classifier.maps, 'compute', compute)
  loaded, path = load.load_model(small), digits[0][0]
  with pytest.raises(StopIteration):
    loaded.write_maps(loaded.predict(path), path, tmp_path)
  np.testing.assert_array_equal(seen[0], loaded.preprocess(path))


def test_a_backbone_has_maps_and_no_classes(small):
  weights = weights_lib.load(small)
  headless = dataclasses.replace(weights.card, num_classes=0, class_names=())
  params = {k: v for k, v in weights.variables['params'].items() if k != 'head'}
  variables = {**weights.variables, 'params': params}
  backbone = classifier.LoadedClassifier(
      dataclasses.replace(weights, card=headless, variables=variables)
  )
  paths = sorted(_EXAMPLES.glob('*.png'))[:2]
  want = classifier.LoadedClassifier(weights).features(paths)
  features = backbone.features(paths)
  assert features.keys() == want.keys() == {'stage1', 'stage2'}
  for name, found in features.items():
    assert len(found) == 2
    np.testing.assert_allclose(found, want[name], atol=1e-6)
  for method in (backbone.predict, backbone.logits):
    with pytest.raises(UserError, match='no classes'):
      method(paths[0])
  last = np.asarray(features['stage2'][:1])
  np.testing.assert_allclose(
      backbone.embed(paths[0]), last.mean((1, 2)), rtol=1e-5, atol=1e-6
  )


def test_images_of_one_name_have_folders_of_their_own():
  images = 'a/x.png', 'b/x.jpg', 'y.png', 'x_2.png', 'c/x.png'
  paths = predict_command._paths('maps', images)
  assert [*paths] == [*images]
  names = [path.name for path in paths.values()]
  assert names == ['x', 'x_2', 'y', 'x_2_2', 'x_3']
