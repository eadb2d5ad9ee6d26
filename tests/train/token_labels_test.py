"""Tests token labels: their targets, the loss against loops, and whole runs."""

import dataclasses
import io
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import mix
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, records, resizing, token_labels
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.runs import metrics_log, plots
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import augmentation, losses, schedule, train_loop

_DIGITS = datasets.info('digits')


def _choose(config, info=_DIGITS):
  config = recipes.resolve(config)
  info = dataclasses.replace(info, image_size=_size(config, info))
  steps = schedule.from_config(config, 1000)
  arch = types.SimpleNamespace(stride=config.model.patch_size)
  model = types.SimpleNamespace(arch=arch)
  return (
      augmentation.from_config(config, info, steps, model),
      losses.from_config(config, model),
  )


def _size(config, info):
  side = config.data.image_size
  return (side, side) if side else info.image_size


def _augmentation(config, info=_DIGITS):
  augment, loss = _choose(config, info)
  assert loss is not losses.class_loss
  return augment


def test_without_a_weight_all_is_plain():
  plain = _recipe(**{'token_label_weight': 0.0, 'data.label_maps': ''})
  augment, loss = _choose(plain)
  assert loss is losses.class_loss
  batch = {'image': np.zeros((2, 9, 9, 3), 'u1'), 'label': np.zeros(2, 'i4')}
  _, target = jax.eval_shape(augment, jax.random.key(0), batch, 0)
  assert target.shape == (2, 10)


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


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'augment.crop_padding': 4}, r'config\.augment\.crop_padding is 4'),
        ({'augment.mixup_alpha': 0.8}, 'mixup_alpha is 0.8: must be 0'),
        ({'augment.cutmix_alpha': 1.0}, 'cutmix_alpha is 1.0: must be 0'),
        ({'data.image_size': 36}, 'images of 36 x 36 .* multiples of 8'),
        ({'model.patch_size': 5}, 'images of 32 x 32 .* multiples of 5'),
    ],
)
def test_contradictions_are_one_line(changes, said):
  with pytest.raises(UserError, match=said) as caught:
    _choose(_recipe(**changes))
  assert '\n' not in str(caught.value)


def test_a_size_that_is_known_late_is_refused_too():
  """The data set does not declare the size of its images."""
  unknown = dataclasses.replace(_DIGITS, image_size=(0, 0))
  augment = _augmentation(_recipe(), unknown)
  index, score = np.zeros((2, 1, 1, 1), 'u2'), np.ones((2, 1, 1, 1), 'f2')
  maps = token_labels.TokenLabels(index, score, '')
  for shape, said in (((16, 20), '20 x 16'), ((20, 16), '16 x 20')):
    batch = {'image': np.zeros((2, *shape, 3), np.uint8)}
    with pytest.raises(UserError, match=f'images of {said} pixels'):
      jax.eval_shape(
          augment,
          jax.random.key(0),
          batch | maps.gather(np.arange(2)),
          0,
      )


def test_targets_are_those_of_the_crop():
  """Class 0 lies above class 1; the second crop is in the lower half."""
  batch = {
      'image': jnp.zeros((2, 24, 16, 3), jnp.uint8),
      'map_index': jnp.array([[[[0]], [[1]]]] * 2, jnp.uint16),
      'map_score': jnp.ones((2, 2, 1, 1), jnp.float16),
  }
  box = jnp.array([[0.0, 0, 1, 1], [0.75, 0, 0.25, 1]])
  run = jax.jit(_augmentation(_recipe()))
  _, (of_image, of_tokens) = run(jax.random.key(0), batch | {'box': box}, 0)
  assert of_tokens.shape == (2, 3, 2, 10)
  np.testing.assert_allclose(of_image[0, :2], 0.5, atol=1e-6)
  np.testing.assert_allclose(of_image[1, :2], [0, 1], atol=1e-6)
  _, (whole, _) = run(jax.random.key(0), batch, 0)
  np.testing.assert_allclose(whole[:, :2], 0.5, atol=1e-6)
  run = _augmentation(_recipe(label_smoothing=0.1))
  _, (smoothed, _) = run(jax.random.key(0), batch, 0)
  np.testing.assert_allclose(smoothed[0, :3], [0.46, 0.46, 0.01], atol=1e-6)


def test_tokens_are_told_what_their_pixels_show():
  """Follows random crops on the host to flipped images and targets.

  Red increases to the right, green downwards. Class 4 i + j lies in row i and
  column j of a 4 x 4 map, so a token's target determines its colour.
  """
  ramp = np.linspace(0, 255, 64).astype(np.uint8)
  red, green = np.broadcast_arrays(ramp[None], ramp[:, None])
  image = np.stack([red, green, np.zeros_like(red)], -1)[None].repeat(6, 0)
  train = records.Images(
      records.Arrays(image, np.zeros(6, np.int32)),
      (32, 32),
      resizing.RandomCrop((0.2, 0.5), (0.6, 1.6)),
  )
  index = np.arange(16, dtype=np.uint16).reshape(1, 4, 4, 1).repeat(6, 0)
  maps = token_labels.TokenLabels(index, np.ones((6, 4, 4, 1), np.float16), '')
  batches = batches_lib.train_batches(train, batch_size=8, seed=0)
  batch = next(batches)
  batch |= maps.gather(batch['row'])
  info = datasets.Info('ramps', ('',) * 16, (0.0,) * 3, (1.0,) * 3, (32, 32))
  config = _recipe(**{'augment.flip': True})
  pixels, (_, targets) = jax.jit(_augmentation(config, info))(
      jax.random.key(2), batch, 0
  )
  seen = np.asarray(pixels).reshape(8, 4, 8, 4, 8, 3).mean((2, 4))
  # Beyond the centres of its outermost cells a map is constant.
  seen = np.clip(seen, 1 / 8, 7 / 8)
  column = targets @ ((np.arange(16) % 4 + 0.5) / 4)
  row = targets @ ((np.arange(16) // 4 + 0.5) / 4)
  np.testing.assert_allclose(column, seen[..., 0], atol=0.04)
  np.testing.assert_allclose(row, seen[..., 1], atol=0.04)
  falling = np.asarray(column[:, 0, 0] > column[:, 0, 3])
  assert 0 < falling.sum() < 8  # some images are flipped, others not


@pytest.fixture
def tiny_data(compiled_once, monkeypatch):
  """Replaces the digits by images of 6 x 7 pixels; the model is a real one."""
  make_model, create = recipes.make_model, factory.create_model
  tiny_parts.install(monkeypatch)
  monkeypatch.setattr(recipes, 'make_model', make_model)
  monkeypatch.setattr(factory, 'create_model', create)
  monkeypatch.setattr(
      datasets,
      'open_source',
      lambda name, split, *_: records.Arrays(
          tiny_parts.SPLITS[split].image, tiny_parts.SPLITS[split].label
      ),
  )


def _write(folder, split, classes):
  """Writes maps that give one class a probability of 1."""
  maps = [(np.full((2, 2, 1), one), np.ones((2, 2, 1))) for one in classes]
  token_labels.write(folder, maps, name='digits', split=split)


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
  """All maps say class 2, so the trained model does too."""
  _write(tmp_path / 'maps', 'train', [2] * 25)
  config = _tiny_recipe(tmp_path / 'maps')
  summary = train_loop.train(config, tmp_path / 'run', Terminal(io.StringIO()))
  entries = metrics_log.read_metrics(tmp_path / 'run')
  losses = [e['loss'] for e in entries if e['kind'] == 'train']
  # Initially log 3 for the image, plus half of that for the tokens.
  assert losses[0] == pytest.approx(1.5 * np.log(3), rel=0.2)
  assert losses[-1] < 0.5 * losses[0]
  share = (tiny_parts.SPLITS['test'].label == 2).mean()
  assert summary['last']['test_accuracy'] == pytest.approx(share)
  assert (tmp_path / 'run' / 'augmented_batch.png').exists()


def test_each_record_has_its_own_map_and_a_run_goes_on(
    tiny_data, tmp_path, monkeypatch
):
  """The maps may move between starts, but may not be replaced by others."""
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
    train_loop.train(config, tmp_path / folder, Terminal(io.StringIO()))
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
    train_loop.train(config, tmp_path / 'run', Terminal(io.StringIO()))
  assert not (tmp_path / 'run' / 'config.json').exists()


B, H, W, K = 4, 3, 5, 6


def _cross_entropy(logits, target):
  """Computes the cross-entropy of one distribution in float64."""
  logits = np.asarray(logits, np.float64)
  log_p = logits - np.log(np.exp(logits).sum())
  return -sum(float(t) * p for t, p in zip(target, log_p, strict=True))


def test_the_loss_against_loops():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(B, K)).astype(np.float32)
  dense = rng.normal(size=(B, H, W, K)).astype(np.float32)
  of_image = rng.dirichlet(np.ones(K), B).astype(np.float32)
  of_tokens = rng.dirichlet(np.ones(K), (B, H, W)).astype(np.float32)

  def apply(image, *, box, method):
    assert image == 'image' and method == 'class_and_dense_logits'
    return (jnp.asarray(logits), jnp.asarray(dense)), {'box': box}

  @jax.jit
  def run(key):
    targets = jnp.asarray(of_image), jnp.asarray(of_tokens)
    drawn = mix.token_box(key, height=H, width=W)
    return drawn, losses.token_label_loss(
        apply, 'image', targets, key, weight=0.5
    )

  for seed in (0, 1):
    drawn = jax.device_get(run(jax.random.key(seed)))
    box, (loss, (metrics, updates)) = drawn
    np.testing.assert_array_equal(updates['box'], box)
    assert box.shape == (H, W)
    taken = box.sum() / (H * W)
    expected, right = 0.0, 0
    for i in range(B):
      mixed = (1 - taken) * of_image[i] + taken * of_image[i ^ 1]
      right += logits[i].argmax() == mixed.argmax()
      expected += _cross_entropy(logits[i], mixed) / B
      for y, x in np.ndindex(H, W):
        token = _cross_entropy(dense[i, y, x], of_tokens[i, y, x])
        expected += 0.5 * token / (B * H * W)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert metrics['accuracy'] == np.float32(right / B)
    assert 0 < taken < 1 or seed  # seed 0 must really mix
