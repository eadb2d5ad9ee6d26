"""Training with token labels: the loss by hand, the parts, a whole run."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import box_mix
from gswinrmt_jax.data import (
    cropped,
    datasets,
    label_maps,
    pictures,
    pipeline,
    sources,
)
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import build, log, loop, token_labels

B, H, W, K = 4, 3, 5, 6


def _cross_entropy(logits, target):
  """Of one distribution, in float64."""
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
    drawn = box_mix.draw_box(key, height=H, width=W)
    return drawn, token_labels.token_loss(
        apply, 'image', targets, key, weight=0.5
    )

  for seed in (0, 1):
    box, (loss, (found, updates)) = jax.device_get(run(jax.random.key(seed)))
    np.testing.assert_array_equal(found, logits)
    np.testing.assert_array_equal(updates['box'], box)
    assert box.shape == (H, W)
    taken = box.sum() / (H * W)
    expected = 0.0
    for i in range(B):
      mixed = (1 - taken) * of_image[i] + taken * of_image[i ^ 1]
      expected += _cross_entropy(logits[i], mixed) / B
      for y, x in np.ndindex(H, W):
        token = _cross_entropy(dense[i, y, x], of_tokens[i, y, x])
        expected += 0.5 * token / (B * H * W)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert 0 < taken < 1 or seed  # so that the mixing counts


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


def test_without_a_weight_there_are_none():
  plain = _recipe(**{'token_label_weight': 0.0, 'data.label_maps': ''})
  assert not token_labels.check(build.resolve(plain))
  assert token_labels.open_for(build.resolve(plain)) is None
  assert token_labels.check(build.resolve(_recipe()))


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
    ],
)
def test_contradictions_are_one_line(changes, said):
  with pytest.raises(UserError, match=said) as caught:
    token_labels.check(build.resolve(_recipe(**changes)))
  assert '\n' not in str(caught.value)


def test_maps_go_with_their_records():
  index = np.arange(7, dtype=np.uint16)[:, None, None, None]
  maps = label_maps.LabelMaps(index, np.ones((7, 1, 1, 1), np.float16))
  parts = token_labels.TokenLabels(maps, 0.5)
  rows = [np.array([3, 0]), np.array([6, 3])]
  batches = iter([{'row': row, 'label': row} for row in rows])
  for batch, row in zip(parts.batches(batches), rows, strict=True):
    np.testing.assert_array_equal(batch['map_index'].ravel(), row)
    np.testing.assert_array_equal(batch['label'], row)
    assert batch['map_score'].shape == (2, 1, 1, 1)


def test_targets_are_those_of_the_crop():
  """Class 0 above class 1; the second image shows the lower half alone."""
  parts = token_labels.TokenLabels(label_maps.LabelMaps(None, None), 0.5)
  info = datasets.info('digits')
  augmentation = parts.augmentation(_recipe(), info, stride=8)
  batch = {
      'image': jnp.zeros((2, 18, 9, 3), jnp.uint8),
      'map_index': jnp.array([[[[0]], [[1]]]] * 2, jnp.uint16),
      'map_score': jnp.ones((2, 2, 1, 1), jnp.float16),
  }
  box = jnp.array([[0.0, 0, 1, 1], [0.75, 0, 0.25, 1]])
  run = jax.jit(augmentation)
  _, (of_image, of_tokens) = run(jax.random.key(0), batch | {'box': box})
  assert of_tokens.shape == (2, 3, 2, 10)  # 18 x 9 pixels, rounded up
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
  train = cropped.Cropped(
      sources.ArraySource(image, np.zeros(6, np.int32)),
      (32, 32),
      pictures.RandomCrop((0.2, 0.5), (0.6, 1.6)),
  )
  index = np.arange(16, dtype=np.uint16).reshape(1, 4, 4, 1).repeat(6, 0)
  parts = token_labels.TokenLabels(
      label_maps.LabelMaps(index, np.ones((6, 4, 4, 1), np.float16)), 0.5
  )
  batches = pipeline.train_batches(train, batch_size=8, seed=0)
  batch = next(parts.batches(batches))
  info = datasets.Info('ramps', ('',) * 16, (0.0,) * 3, (1.0,) * 3)
  config = _recipe(**{'augment.flip': True})
  pixels, (_, targets) = jax.jit(parts.augmentation(config, info, stride=8))(
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


@pytest.fixture
def tiny_data(monkeypatch):
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


def _write(folder, split, label):
  """Writes maps that are sure of one class, whatever a record's own."""
  one = np.full((2, 2, 1), label), np.ones((2, 2, 1))
  count = len(tiny_parts.SPLITS[split])
  label_maps.write(folder, [one] * count, name='digits', split=split)


def test_a_run_learns_what_the_maps_say(tiny_data, tmp_path):
  """Through the loop; all say class 2, so that the model does in the end."""
  _write(tmp_path / 'maps', 'train', 2)
  config = _recipe(
      **{
          'data.label_maps': str(tmp_path / 'maps'),
          'model.patch_size': 2,
          'model.widths': (8,),
          'batch_size': 4,
          'eval_batch_size': 5,
          'log_every_steps': 2,
          'optimizer.learning_rate': 0.05,
      }
  )
  summary = loop.train(config, tmp_path / 'run', log.Terminal(io.StringIO()))
  entries = log.read_metrics(tmp_path / 'run')
  losses = [e['loss'] for e in entries if e['kind'] == 'train']
  # At first log 3 of the image, and half of that of the tokens.
  assert losses[0] == pytest.approx(1.5 * np.log(3), rel=0.2)
  assert losses[-1] < 0.5 * losses[0]
  share = (tiny_parts.SPLITS['test'].label == 2).mean()
  assert summary['last']['test_accuracy'] == pytest.approx(share)
  assert (tmp_path / 'run' / 'augmented_batch.png').exists()


def test_maps_of_another_split_stop_the_run(tiny_data, tmp_path):
  _write(tmp_path / 'maps', 'val', 2)
  config = _recipe(**{'data.label_maps': str(tmp_path / 'maps')})
  with pytest.raises(UserError, match="not for digits 'train': split is 'val'"):
    loop.train(config, tmp_path / 'run', log.Terminal(io.StringIO()))
  assert not (tmp_path / 'run' / 'config.json').exists()
