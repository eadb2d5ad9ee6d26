"""Tests MaSA in the skeletons of DeiT and Swin against float64 NumPy.

The reference follows the description of the skeletons, with the oracle's
attention: patches, blocks of LN, attention and an FFN without convolution,
merging of 2x2 neighbours, LN, pooling and a linear layer.
"""

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import random_variables

import gswinrmt_jax


def _pad(x, side):
  """Pads with zeros on the right and below, to multiples of `side`."""
  below, right = -x.shape[1] % side, -x.shape[2] % side
  return np.pad(x, ((0, 0), (0, below), (0, right), (0, 0)))


def _embed(tree, x, side):
  x = _pad(x, side)
  height, width = x.shape[1] // side, x.shape[2] // side
  out = np.zeros((len(x), height, width, len(tree['conv']['bias'])))
  for i, j in np.ndindex(height, width):
    patch = x[:, side * i : side * (i + 1), side * j : side * (j + 1)]
    out[:, i, j] = np.einsum('buvc,uvcf->bf', patch, tree['conv']['kernel'])
  out += tree['conv']['bias']
  return oracle.layer_norm(tree['norm'], out) if 'norm' in tree else out


def _merge(tree, x):
  x = _pad(x, 2)
  corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
  x = oracle.layer_norm(tree['norm'], np.concatenate(corners, -1))
  return x @ tree['linear']['kernel']


def _block(tree, x, heads, spread, full):
  normed = oracle.layer_norm(tree['attention_norm'], x)
  split = (*x.shape[:3], heads, x.shape[3] // heads)
  query, key, value = (
      oracle.dense(tree['attention'][name], normed).reshape(split)
      for name in ('query', 'key', 'value')
  )
  rates = oracle.fixed_log_decay(heads, spread)
  if full:
    out = oracle.attend_all(query, key, value, rates)
  else:
    out = oracle.attend_windows('rmt', query, key, value, np.stack([rates] * 2))
  x = x + oracle.dense(tree['attention']['out'], out.reshape(x.shape))
  hidden = oracle.dense(
      tree['ffn']['up'], oracle.layer_norm(tree['ffn_norm'], x)
  )
  return x + oracle.dense(tree['ffn']['down'], oracle.gelu(hidden))


def _forward(variables, image, *, side, depths, heads, spreads, full):
  """Returns the maps of the stages, and the logits."""
  params, out = oracle.nest(variables)['params'], {}
  x = _embed(params['stem'], np.asarray(image, np.float64), side)
  for stage, depth in enumerate(depths, start=1):
    if stage > 1:
      x = _merge(params[f'down{stage - 1}'], x)
    for index in range(depth):
      x = _block(
          params[f'stage{stage}'][f'block{index:02}'],
          x,
          heads[stage - 1],
          spreads[stage - 1],
          stage in full,
      )
    out[f'stage{stage}'] = x
  pooled = oracle.layer_norm(params['norm'], x).mean((1, 2))
  return out, oracle.dense(params['head'], pooled)


@pytest.mark.parametrize(
    ('name', 'size', 'widths', 'reference'),
    [
        (
            'rmt_swin_t',
            (45, 70),  # maps of 12x18, 6x9, 3x5, 2x3
            (6, 12, 24, 48),
            {
                'side': 4,
                'depths': (1, 1, 1, 1),
                'heads': (1, 2, 3, 4),
                'spreads': (4, 4, 6, 6),
                'full': (4,),
            },
        ),
        (
            'rmt_deit_s',
            (40, 64),  # a map of 3x4
            (12,),
            {
                'side': 16,
                'depths': (2,),
                'heads': (3,),
                'spreads': (6,),
                'full': (1,),
            },
        ),
    ],
)
def test_model_agrees_with_numpy(name, size, widths, reference):
  model = gswinrmt_jax.create_model(
      name,
      num_classes=7,
      widths=widths,
      depths=reference['depths'],
      num_heads=reference['heads'],
  )
  image = random_variables.image((2, *size, 3))
  flat = random_variables.flat(model, image.shape)
  maps, logits = _forward(flat, image, **reference)

  @jax.jit
  def run(variables, image):
    return (
        model.apply(variables, image, train=False, method='features'),
        model.apply(variables, image, train=False),
    )

  variables = traverse_util.unflatten_dict(
      {path: jnp.asarray(array) for path, array in flat.items()}, sep='/'
  )
  actual_maps, actual = run(variables, image)
  assert actual_maps.keys() == maps.keys()
  for stage, expected in maps.items():
    np.testing.assert_allclose(
        actual_maps[stage], expected, rtol=0, atol=5e-5, err_msg=stage
    )
  assert np.std(logits) > 0.5  # the scale for the tolerance
  np.testing.assert_allclose(actual, logits, rtol=0, atol=1e-5)
