"""Tests feature maps, loss and gradients against the authors' released RMT."""

import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import released_rmt

from gswinrmt_jax import weights
from gswinrmt_jax.weights import state_dict

# Maps the released name of a feature map to the module that outputs it.
_MAPS = {
    'stem': 'stem',
    'stage0': 'stage1',
    'stage1': 'stage2',
    'stage2': 'stage3',
    'stage3': 'stage4',
    'stage0_down': 'down1',
    'stage1_down': 'down2',
    'stage2_down': 'down3',
    'proj': 'proj',
}


@functools.cache
def _variables():
  return weights.from_torch_state_dict(
      released_rmt.state_dict(), released_rmt.model()
  )


@jax.enable_x64(True)
def test_logits_and_maps():
  """In float64; the reference's tables of positions and decays are float32."""
  want = released_rmt.arrays()
  model = released_rmt.model().clone(dtype=jnp.float64)

  @jax.jit
  def run(variables, image):
    logits, found = model.apply(
        variables, image, train=False, capture_intermediates=True
    )
    embedding = model.apply(variables, image, train=False, method='embed')
    return logits, embedding, found['intermediates']

  arrays = jax.tree.map(jnp.float64, (_variables(), want['b/x']))
  logits, embedding, captured = jax.device_get(run(*arrays))
  np.testing.assert_allclose(logits, want['b/logits'], rtol=0, atol=2e-7)
  outputs = traverse_util.flatten_dict(captured, sep='/')
  maps = {name: outputs[f'{path}/__call__'][0] for name, path in _MAPS.items()}
  # The head's SiLU(BN(Linear(map))), averaged, is part of the embedding.
  for name, got in {**maps, 'pooled': embedding}.items():
    got = got.ravel()[:: released_rmt.EVERY]
    np.testing.assert_allclose(
        got, want[f'b/{name}'], rtol=0, atol=2e-5, err_msg=name
    )


def test_a_training_step():
  want = released_rmt.arrays()
  labels = jnp.asarray(want['train/labels'])
  model = released_rmt.model()

  @jax.jit
  def step(variables, image):
    def loss_fn(params):
      logits, updates = model.apply(
          {**variables, 'params': params},
          image,
          train=True,
          mutable=['batch_stats'],
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      return losses.mean(), (logits, updates)

    return jax.value_and_grad(loss_fn, has_aux=True)(variables['params'])

  (loss, (logits, updates)), grads = step(_variables(), want['x'])
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=3e-6)
  close(loss, want['train/loss'])
  close(logits, want['train/logits'], atol=1e-5)

  after = _released(updates['batch_stats'])
  assert sum(key.endswith('running_var') for key in after) == 8
  for key, value in after.items():
    close(value, want[f'train/after/{key}'], err_msg=key)

  gradients = _released(grads)
  norms = {
      key.removeprefix('train/gradnorm/')
      for key in want
      if key.startswith('train/gradnorm/')
  }
  assert norms == gradients.keys()
  for key, value in gradients.items():
    close(np.linalg.norm(value), want[f'train/gradnorm/{key}'], err_msg=key)
    if f'train/grad/{key}' in want:
      expected = want[f'train/grad/{key}']
      # The reference is float32. Our model in float64 differs by up to 4e-6 of
      # an array's largest value, in the first convolution: it sums all pixels.
      within = 3e-6 + 1e-5 * np.abs(expected).max()
      close(value, expected, atol=within, err_msg=key)


def _released(tree):
  """Returns one of our trees under the released names and layouts."""
  flat = {}
  for path, array in traverse_util.flatten_dict(tree, sep='/').items():
    key = state_dict.released_name(path)
    flat[key] = state_dict.to_torch(key, np.asarray(array))
  return flat
