"""Prediction with the trained digits of `tests/data/golden_run`."""

import dataclasses
import json
import pathlib

import numpy as np
import PIL.Image
import pytest

from gswinrmt_jax.commands import main
from gswinrmt_jax.data import datasets
from gswinrmt_jax.deploy import predict
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import load

_RUN = pathlib.Path(__file__).parent / 'data' / 'golden_run'


@pytest.fixture(scope='module')
def predictor():
  return predict.Predictor(load.load(_RUN))


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
  """Twelve digits as files, and what they are."""
  folder = tmp_path_factory.mktemp('digits')
  test = datasets.load('digits', 'test')
  for index in range(12):
    PIL.Image.fromarray(test.image[index]).save(folder / f'{index:02d}.png')
  return sorted(folder.iterdir()), test.label[:12].tolist()


def test_digits_are_named(predictor, digits):
  paths, labels = digits
  images = [predictor.read(path) for path in paths]
  found = list(predictor.predict(paths, images, 3))
  assert [one.path for one in found] == paths
  right = [
      one.labels[0] == label for one, label in zip(found, labels, strict=True)
  ]
  assert np.mean(right) >= 11 / 12
  for one in found:
    assert len(one.labels) == 3
    assert sorted(one.probabilities, reverse=True) == list(one.probabilities)
    assert one.names == tuple(str(label) for label in one.labels)
  everything = next(iter(predictor.predict(paths, images, 99)))
  assert sum(everything.probabilities) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    'image',
    [
        np.zeros((32, 32, 3), np.float32),  # normalised already, or in 0 to 1
        np.zeros((32, 32, 3), np.int32),
        np.zeros((32, 40, 3), np.uint8),
        np.zeros((32, 32), np.uint8),
    ],
)
def test_images_that_are_no_pixels_are_refused(predictor, image):
  path = pathlib.Path('a.png')
  with pytest.raises(ValueError, match=r'must be pixels from 0 to 255, uint8'):
    list(predictor.predict([path], [image], 1))


def test_batches_do_not_matter(predictor, digits, monkeypatch):
  paths, _ = digits
  images = [predictor.read(path) for path in paths[:5]]
  whole = list(predictor.predict(paths[:5], images, 10))
  monkeypatch.setattr(predict, '_BATCH', 2)
  parts = list(predictor.predict(paths[:5], images, 10))
  for one, other in zip(whole, parts, strict=True):
    assert (one.path, one.labels) == (other.path, other.labels)
    np.testing.assert_allclose(
        one.probabilities, other.probabilities, atol=1e-6
    )


def test_the_command(digits, tmp_path, capsys):
  paths, labels = digits
  broken = tmp_path / 'broken.png'
  broken.write_bytes(b'no picture')
  arguments = ['predict', str(_RUN), str(paths[0]), '--top=2']
  assert main.main(arguments) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == str(paths[0]) and len(lines) == 3
  assert lines[1].split()[1] == str(labels[0])

  assert main.main([*arguments, str(broken), '--json']) == 1
  printed = capsys.readouterr()
  assert 'broken.png is not an image' in printed.err
  report = json.loads(printed.out)
  assert [one['image'] for one in report] == [str(paths[0])]
  assert report[0]['predictions'][0]['label'] == labels[0]


def test_maps_beside_the_prediction(digits, tmp_path, capsys):
  path = str(digits[0][0])
  out = tmp_path / 'maps'
  arguments = ['predict', str(_RUN), path, f'--maps={out}', '--point=20,9']
  assert main.main(arguments) == 0
  pictures = sorted(file.name for file in (out / '00.png').iterdir())
  assert pictures == [
      'attention_reach.png',
      'decay_kernels.png',
      'gate.png',
      'grad_cam.png',
  ]
  assert 'maps in' in capsys.readouterr().err
  assert main.main([*arguments[:-1], '--point=20,99']) == 2
  assert (
      '--point=20,99 is outside of the 32 x 32 pixels'
      in capsys.readouterr().err
  )


@pytest.mark.parametrize(
    ('argument', 'said'),
    [
        ('--point=3,4', '--point is for --maps'),
        ('--top=0', '--top must be at least 1'),
        ('--step=first', "--step is best, latest or a number, not 'first'"),
        ('--image-size=8', 'at least 32x32'),
    ],
)
def test_mistakes_are_one_line(digits, capsys, argument, said):
  assert main.main(['predict', str(_RUN), str(digits[0][0]), argument]) == 2
  printed = capsys.readouterr().err
  assert said in printed and printed.count('\n') == 1


def test_a_backbone_has_no_classes():
  loaded = load.load(_RUN)
  card = dataclasses.replace(loaded.card, num_classes=0, class_names=())
  with pytest.raises(UserError, match='no classes'):
    predict.Predictor(dataclasses.replace(loaded, card=card))
