"""Names and layouts of the released RMT; its numbers are another test's."""

import jax
import numpy as np
import pytest
import released_rmt

import gswinrmt_jax
from gswinrmt_jax import weights
from gswinrmt_jax.models import factory, named
from gswinrmt_jax.weights import rmt_names
from gswinrmt_jax.weights import state_dict as state_dict_lib


def test_there_and_back_again_is_exact():
  model, state_dict = released_rmt.model(), released_rmt.state_dict()
  variables = weights.from_torch_state_dict(state_dict, model)
  back = weights.to_torch_state_dict(variables, model)
  assert back.keys() == state_dict.keys()
  for key, array in state_dict.items():
    assert back[key].shape == array.shape, key
    if 'Relpos' in key:  # tables, computed anew in another library
      np.testing.assert_allclose(
          back[key], array, rtol=1e-6, atol=6e-8, err_msg=key
      )
    elif not key.endswith('num_batches_tracked'):
      np.testing.assert_array_equal(back[key], array, err_msg=key)
      assert back[key].flags['C_CONTIGUOUS'], key
  again = weights.from_torch_state_dict(back, model)
  jax.tree.map(np.testing.assert_array_equal, again, variables)


def test_a_dense_head_goes_there_and_back_exactly():
  model = released_rmt.model(dense_head=True)
  rng = np.random.default_rng(0)
  aux = {
      'aux_head.weight': rng.normal(size=(10, 64)).astype(np.float32),
      'aux_head.bias': rng.normal(size=10).astype(np.float32),
  }
  state_dict = released_rmt.state_dict() | aux
  variables = weights.from_torch_state_dict(state_dict, model)
  dense = variables['params']['dense_head']
  np.testing.assert_array_equal(dense['kernel'], aux['aux_head.weight'].T)
  back = weights.to_torch_state_dict(variables, model)
  assert back.keys() == state_dict.keys()
  for key, array in aux.items():
    np.testing.assert_array_equal(back[key], array)


@pytest.mark.parametrize('size', ['t', 's', 'b', 'l'])
def test_tables_of_the_released_sizes(size):
  arch = named.MODELS[f'rmt_{size}']
  released = released_rmt.arrays()
  for stage in range(4):
    for table in ('decay', 'angle'):
      got = state_dict_lib._buffers(arch)[f'layers.{stage}.Relpos.{table}']
      want = released[f'{table}/{size.upper()}/stage{stage}']
      np.testing.assert_allclose(got, want, rtol=1e-6, atol=6e-8)


def test_everything_that_does_not_fit_is_named():
  state_dict = released_rmt.state_dict()
  del state_dict['norm.bias']
  state_dict['head.weight'] = state_dict['head.weight'][:3]
  state_dict['aux_head.weight'] = np.zeros(3, np.float32)
  state_dict['layers.2.Relpos.decay'] = (
      state_dict['layers.2.Relpos.decay'] * 1.01
  )
  match = weights.match_state_dict(state_dict, released_rmt.model())
  assert match.missing == ['norm.bias']
  assert match.unexpected == ['aux_head.weight']
  assert match.mismatched.keys() == {'head.weight', 'layers.2.Relpos.decay'}
  with pytest.raises(ValueError, match=r'head\.weight: shape \(3, 64\)'):
    weights.from_torch_state_dict(state_dict, released_rmt.model())


@pytest.mark.parametrize(
    'changes',
    [
        {'gate': True},
        {'decay': 'learned'},
        {'rotary': 'none'},
        {'window_size': 7},
        {'scaled': False},
        {'lce': 'pointwise'},
    ],
)
def test_what_is_no_rmt_is_refused(changes):
  field = next(iter(changes))
  with pytest.raises(ValueError, match=field):
    weights.match_state_dict({}, released_rmt.model(**changes))


def test_the_names_of_the_four_released_models():
  """Every key, and the shape that PyTorch has for it."""
  expected = {
      'stem/conv3/kernel': ('patch_embed.proj.9.weight', (3, 3, 5, 7)),
      'stem/norm2/var': ('patch_embed.proj.7.running_var', (5,)),
      'down3/norm/mean': ('layers.2.downsample.norm.running_mean', (5,)),
      'stage4/block11/attention_scale': ('layers.3.blocks.11.gamma_1', (5,)),
      'stage1/block00/ffn_scale': ('layers.0.blocks.0.gamma_2', (5,)),
      'stage2/block03/attention/local/kernel': (
          'layers.1.blocks.3.retention.lepe.conv.weight',
          (5, 5, 1, 7),
      ),
      'stage2/block03/ffn/up/kernel': (
          'layers.1.blocks.3.ffn.fc1.weight',
          (5, 7),
      ),
      'feature_norm2/scale': ('extra_norms.1.weight', (5,)),
      'proj_norm/scale': ('norm.weight', (5,)),
      'head/bias': ('head.bias', (5,)),
  }
  torch_shapes = {
      (3, 3, 5, 7): (7, 5, 3, 3),
      (5, 5, 1, 7): (7, 1, 5, 5),
      (5, 7): (7, 5),
  }
  for path, (key, shape) in expected.items():
    name = rmt_names.find(path)
    assert name.key == key
    array = np.arange(np.prod(shape)).reshape(shape)
    there = name.to_torch(array)
    is_scale = path.endswith('_scale')
    assert there.shape == (
        (1, 1, 1, 5) if is_scale else torch_shapes.get(shape, shape)
    )
    np.testing.assert_array_equal(name.from_torch(there), array)
  kernel = rmt_names.find('stem/conv0/kernel').to_torch(
      np.arange(3 * 3 * 2 * 4).reshape(3, 3, 2, 4)
  )
  assert kernel[3, 1, 0, 2] == 0 * 24 + 2 * 8 + 1 * 4 + 3  # [out in row col]
  with pytest.raises(ValueError, match='no counterpart of stem/gate'):
    rmt_names.find('stem/gate')


def test_a_model_with_layer_scale_and_without_a_head():
  model = gswinrmt_jax.create_model(
      'rmt_b',
      num_classes=0,
      feature_norm=True,
      depths=(1, 1, 1, 1),
      widths=(16, 16, 32, 32),
      num_heads=(1, 1, 2, 2),
  )
  variables = factory.variable_shapes(model, (32, 32, 3))
  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), variables)
  keys = weights.to_torch_state_dict(zeros, model)
  assert keys['layers.2.blocks.0.gamma_1'].shape == (1, 1, 1, 32)
  assert 'layers.1.blocks.0.gamma_1' not in keys
  assert keys['extra_norms.3.weight'].shape == (32,)
  assert not [key for key in keys if key.startswith(('head', 'proj', 'norm'))]
