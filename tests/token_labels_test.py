"""Training with token labels: the parts, and whole runs."""

import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import (
    datasets,
    label_maps,
    pictures,
    sources,
)
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log, plots
from gswinrmt_jax.train import build, token_labels, train_loop, train_step

_DIGITS = datasets.info('digits')


def _recipe(**changes):
  config = recipes.digits('rmt_deit_s')
  config.update_from_flattened_dict(
      {
          'augment.crop_padding': 0,
          'model.dense_head': True,
          'model.patch_size': 8,
          'model.widths': (16,),
          'model.depths': (1,),
          'model.num_heads': (1,),
          'num_epochs': 2,
          'token_label_weight': 0.5,
          'data.label_maps': 'maps',
          **changes,
      }
  )
  return config


def _augmentation(config, info=_DIGITS):
  augmentation, loss = token_labels.choose(recipes.resolve(config), info)
  assert loss is not train_step.class_loss
  return augmentation


def test_without_a_weight_all_is_plain():
  plain = _recipe(**{'token_label_weight': 0.0, 'data.label_maps': ''})
  plain = recipes.resolve(plain)
  assert not token_labels.check(plain, _DIGITS)
  assert token_labels.open_for(plain) is None
  augmentation, loss = token_labels.choose(plain, _DIGITS)
  assert loss is train_step.class_loss
  batch = {'image': np.zeros((2, 9, 9, 3), 'u1'), 'label': np.zeros(2, 'i4')}
  _, target = jax.eval_shape(augmentation, jax.random.key(0), batch)
  assert target.shape == (2, 10)
  assert token_labels.check(recipes.resolve(_recipe()), _DIGITS)


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'token_label_weight': -1.0}, 'is -1.0: must be at least 0'),
        ({'token_label_weight': float('nan')}, 'is nan: must'),
        (
            {'token_label_weight': 0.0},
            "is 0.0 and .* 'maps': token labels need",
        ),
        ({'data.label_maps': ''}, "is 0.5 and .* '': token labels need both"),
        ({'model.dense_head': None}, 'a dense head, not rmt_deit_s'),
        ({'augment.crop_padding': 4}, r'config\.augment\.crop_padding is 4'),
        ({'augment.mixup_alpha': 0.8}, 'mixup_alpha is 0.8: must be 0'),
        ({'augment.cutmix_alpha': 1.0}, 'cutmix_alpha is 1.0: must be 0'),
        ({'data.image_size': 36}, 'images of 36 x 36 .* multiples of 8'),
        ({'model.patch_size': 5}, 'images of 32 x 32 .* multiples of 5'),
    ],
)
def test_contradictions_are_one_line(changes, said):
  with pytest.raises(UserError, match=said) as caught:
    token_labels.choose(recipes.resolve(_recipe(**changes)), _DIGITS)
  assert '\n' not in str(caught.value)


def test_a_size_that_is_known_late_is_refused_too():
  """Of a data set that does not say how large its images are."""
  unknown = dataclasses.replace(_DIGITS, image_size=(0, 0))
  augmentation = _augmentation(_recipe(), unknown)
  index, score = np.zeros((2, 1, 1, 1), 'u2'), np.ones((2, 1, 1, 1), 'f2')
  maps = label_maps.LabelMaps(index, score, '')
  for shape, said in (((16, 20), '20 x 16'), ((20, 16), '16 x 20')):
    batch = {'image': np.zeros((2, *shape, 3), np.uint8)}
    with pytest.raises(UserError, match=f'images of {said} pixels'):
      jax.eval_shape(
          augmentation, jax.random.key(0), batch | maps.gather(np.arange(2))
      )


def test_maps_go_with_their_records():
  index = np.arange(7, dtype=np.uint16)[:, None, None, None]
  maps = label_maps.LabelMaps(index, np.ones((7, 1, 1, 1), np.float16), '')
  rows = [np.array([3, 0]), np.array([6, 3])]
  batches = iter([{'row': row, 'label': row} for row in rows])
  with_maps = token_labels.with_maps(batches, maps)
  for batch, row in zip(with_maps, rows, strict=True):
    np.testing.assert_array_equal(batch['map_index'].ravel(), row)
    np.testing.assert_array_equal(batch['label'], row)
    assert batch['map_score'].shape == (2, 1, 1, 1)


def test_targets_are_those_of_the_crop():
  """Class 0 above class 1; the second image shows the lower half alone."""
  batch = {
      'image': jnp.zeros((2, 24, 16, 3), jnp.uint8),
      'map_index': jnp.array([[[[0]], [[1]]]] * 2, jnp.uint16),
      'map_score': jnp.ones((2, 2, 1, 1), jnp.float16),
  }
  box = jnp.array([[0.0, 0, 1, 1], [0.75, 0, 0.25, 1]])
  run = jax.jit(_augmentation(_recipe()))
  _, (of_image, of_tokens) = run(jax.random.key(0), batch | {'box': box})
  assert of_tokens.shape == (2, 3, 2, 10)
  np.testing.assert_allclose(of_image[0, :2], 0.5, atol=1e-6)
  np.testing.assert_allclose(of_image[1, :2], [0, 1], atol=1e-6)
  _, (whole, _) = run(jax.random.key(0), batch)
  np.testing.assert_allclose(whole[:, :2], 0.5, atol=1e-6)


def test_tokens_are_told_what_their_pixels_show():
  """From random crops on the host to flipped images and targets.

  Red grows to the right and green downwards; class 4 i + j lies in row i and
  column j of a map of 4 x 4. So a token's colour is known from its target.
  """
  ramp = np.linspace(0, 255, 64).astype(np.uint8)
  red, green = np.broadcast_arrays(ramp[None], ramp[:, None])
  image = np.stack([red, green, np.zeros_like(red)], -1)[None].repeat(6, 0)
  train = batches_lib.Cropped(
      sources.ArraySource(image, np.zeros(6, np.int32)),
      (32, 32),
      pictures.RandomCrop((0.2, 0.5), (0.6, 1.6)),
  )
  index = np.arange(16, dtype=np.uint16).reshape(1, 4, 4, 1).repeat(6, 0)
  maps = label_maps.LabelMaps(index, np.ones((6, 4, 4, 1), np.float16), '')
  batches = batches_lib.train_batches(train, batch_size=8, seed=0)
  batch = next(token_labels.with_maps(batches, maps))
  info = datasets.Info('ramps', ('',) * 16, (0.0,) * 3, (1.0,) * 3)
  config = _recipe(**{'augment.flip': True})
  pixels, (_, targets) = jax.jit(_augmentation(config, info))(
      jax.random.key(2), batch
  )
  seen = np.asarray(pixels).reshape(8, 4, 8, 4, 8, 3).mean((2, 4))
  # Beyond the middle of the outermost cells a map stays as it is there.
  seen = np.clip(seen, 1 / 8, 7 / 8)
  column = targets @ ((np.arange(16) % 4 + 0.5) / 4)
  row = targets @ ((np.arange(16) // 4 + 0.5) / 4)
  np.testing.assert_allclose(column, seen[..., 0], atol=0.04)
  np.testing.assert_allclose(row, seen[..., 1], atol=0.04)
  falling = np.asarray(column[:, 0, 0] > column[:, 0, 3])
  assert 0 < falling.sum() < 8  # some are flipped, others are not


@pytest.fixture(scope='module')
def _compiled_once(tmp_path_factory):
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


@pytest.fixture
def tiny_data(_compiled_once, monkeypatch):
  """Images of 6 x 7 pixels in place of the digits; the model is a real one."""
  make_model = build.make_model
  tiny_parts.install(monkeypatch)
  monkeypatch.setattr(build, 'make_model', make_model)
  monkeypatch.setattr(
      datasets,
      'open_source',
      lambda name, split, data_dir: sources.ArraySource(
          tiny_parts.SPLITS[split].image, tiny_parts.SPLITS[split].label
      ),
  )


def _write(folder, split, classes):
  """Writes maps that are sure of one class each."""
  maps = [(np.full((2, 2, 1), one), np.ones((2, 2, 1))) for one in classes]
  label_maps.write(folder, maps, name='digits', split=split)


def _tiny_recipe(maps, **changes):
  return _recipe(
      **{
          'data.label_maps': str(maps),
          'data.image_size': 6,
          'model.patch_size': 2,
          'model.widths': (8,),
          'batch_size': 4,
          'eval_batch_size': 5,
          'log_every_steps': 2,
          'optimizer.learning_rate': 0.05,
          **changes,
      }
  )


def test_a_run_learns_what_the_maps_say(tiny_data, tmp_path):
  """Through the loop; all say class 2, so that the model does in the end."""
  _write(tmp_path / 'maps', 'train', [2] * 25)
  config = _tiny_recipe(tmp_path / 'maps')
  summary = train_loop.train(
      config, tmp_path / 'run', metrics_log.Terminal(io.StringIO())
  )
  entries = metrics_log.read_metrics(tmp_path / 'run')
  losses = [e['loss'] for e in entries if e['kind'] == 'train']
  # At first log 3 of the image, and half of that of the tokens.
  assert losses[0] == pytest.approx(1.5 * np.log(3), rel=0.2)
  assert losses[-1] < 0.5 * losses[0]
  share = (tiny_parts.SPLITS['test'].label == 2).mean()
  assert summary['last']['test_accuracy'] == pytest.approx(share)
  assert (tmp_path / 'run' / 'augmented_batch.png').exists()


def test_each_record_has_its_own_map_and_a_run_goes_on(
    tiny_data, tmp_path, monkeypatch
):
  """Wherever the maps lie now; with other maps it does not go on."""
  label = tiny_parts.SPLITS['train'].label
  _write(tmp_path / 'maps', 'train', (label + 1) % 3)
  _write(tmp_path / 'others', 'train', label)
  drawn = []
  monkeypatch.setattr(
      plots,
      'write_augmented_batch',
      lambda path, batch, augmented, info: drawn.append((batch, augmented)),
  )

  def train(folder, maps, **changes):
    config = _tiny_recipe(tmp_path / maps, **changes)
    train_loop.train(
        config, tmp_path / folder, metrics_log.Terminal(io.StringIO())
    )
    entries = metrics_log.read_metrics(tmp_path / folder)
    return [entry['loss'] for entry in entries if entry['kind'] == 'train']

  whole = train('whole', 'maps')
  ((batch, (_, target)),) = drawn
  np.testing.assert_array_equal(target.argmax(-1), (batch['label'] + 1) % 3)

  half = train('parted', 'maps', stop_after_epochs=1)
  (tmp_path / 'maps').rename(tmp_path / 'moved')
  with pytest.raises(UserError, match=r'data\.json label_maps differs'):
    train('parted', 'others')
  assert 0 < len(half) < len(whole)
  assert train('parted', 'moved') == whole


def test_maps_of_another_split_stop_the_run(tiny_data, tmp_path):
  _write(tmp_path / 'maps', 'val', [2] * 11)
  config = _tiny_recipe(tmp_path / 'maps')
  with pytest.raises(UserError, match="not for digits 'train': split is 'val'"):
    train_loop.train(
        config, tmp_path / 'run', metrics_log.Terminal(io.StringIO())
    )
  assert not (tmp_path / 'run' / 'config.json').exists()
