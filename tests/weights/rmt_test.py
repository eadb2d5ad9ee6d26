"""Tests the names, layouts and sizes of released RMT weights."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import released_rmt

import gswinrmt_jax
from gswinrmt_jax import weights
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import architecture, factory, named
from gswinrmt_jax.weights import rmt_checkpoint
from gswinrmt_jax.weights import state_dict as state_dict_lib


def test_there_and_back_again_is_exact():
  model, state_dict = released_rmt.model(), released_rmt.state_dict()
  variables = weights.from_torch_state_dict(state_dict, model)
  back = weights.to_torch_state_dict(variables, model)
  assert back.keys() == state_dict.keys()
  for key, array in state_dict.items():
    assert back[key].shape == array.shape, key
    if 'Relpos' in key:  # tables, recomputed by another library
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
  model = gswinrmt_jax.create_model(f'rmt_{size}', num_classes=0)
  tables, released = state_dict_lib._tables(model), released_rmt.arrays()
  for stage in range(4):
    for table in ('decay', 'angle'):
      got = tables[f'layers.{stage}.Relpos.{table}']
      want = released[f'{table}/{size.upper()}/stage{stage}']
      np.testing.assert_allclose(got, want, rtol=1e-6, atol=6e-8)


def test_everything_that_does_not_fit_is_named():
  state_dict = released_rmt.state_dict()
  del state_dict['norm.bias']
  state_dict['head.weight'] = state_dict['head.weight'][:3]
  state_dict['head.bias'] = state_dict['head.bias'] * np.float32('nan')
  state_dict['aux_head.weight'] = np.zeros(3, np.float32)
  state_dict['layers.2.Relpos.decay'] = (
      state_dict['layers.2.Relpos.decay'] * 1.01
  )
  match = weights.match_state_dict(state_dict, released_rmt.model())
  assert match.missing == ['norm.bias']
  assert match.unexpected == ['aux_head.weight']
  assert match.mismatched.pop('head.bias') == 'not all values are finite'
  assert match.mismatched.keys() == {'head.weight', 'layers.2.Relpos.decay'}
  with pytest.raises(ValueError, match=r'head\.weight: shape \(3, 64\)'):
    weights.from_torch_state_dict(state_dict, released_rmt.model())


@pytest.mark.parametrize(
    'changes',
    [
        {'gate': True},
        {'stem_strides': (2, 1, 1, 1)},
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
  """Keys of every kind, and their shapes in PyTorch."""
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
    assert state_dict_lib.released_name(path) == key
    array = np.arange(np.prod(shape)).reshape(shape)
    there = state_dict_lib.to_torch(key, array)
    is_scale = path.endswith('_scale')
    assert there.shape == (
        (1, 1, 1, 5) if is_scale else torch_shapes.get(shape, shape)
    )
    np.testing.assert_array_equal(state_dict_lib.from_torch(key, there), array)
  kernel = state_dict_lib.to_torch(
      'patch_embed.proj.0.weight',
      np.arange(3 * 3 * 2 * 4).reshape(3, 3, 2, 4),
  )
  assert kernel[3, 1, 0, 2] == 0 * 24 + 2 * 8 + 1 * 4 + 3  # [out in row col]
  for path in (
      'stem/gate',
      'stage1/block00/attention/gate/kernel',
      'stage1/block00/attention/decay_logit',
  ):
    with pytest.raises(ValueError, match=f'no counterpart of {path}'):
      state_dict_lib.released_name(path)


def test_a_model_with_layer_scale_and_without_a_head():
  model = gswinrmt_jax.create_model(
      'rmt_b',
      num_classes=0,
      feature_norm=True,
      depths=(1, 1, 1, 1),
      widths=(16, 16, 32, 32),
      num_heads=(1, 1, 2, 2),
  )
  keys = released_rmt.zeros(model)
  assert keys['layers.2.blocks.0.gamma_1'].shape == (1, 1, 1, 32)
  assert 'layers.1.blocks.0.gamma_1' not in keys
  assert keys['extra_norms.3.weight'].shape == (32,)
  assert not [key for key in keys if key.startswith(('head', 'proj', 'norm'))]


@functools.cache
def _state_dict(name, **fields):
  """Returns a released model's state dict with all weights 0."""
  model = gswinrmt_jax.create_model(name, **{'num_classes': 1000} | fields)
  return released_rmt.zeros(model)


@pytest.mark.parametrize('name', ['rmt_t', 'rmt_s', 'rmt_b', 'rmt_l'])
def test_the_released_sizes_are_told_apart(name):
  small = {'num_classes': 7}  # keeps the last layer small
  found = rmt_checkpoint.recognise(_state_dict(name, **small))
  assert (found.name, found.num_classes) == (name, 7)
  assert found.fields == factory.resolve(name, {})
  parameters = {
      key: array
      for key, array in _state_dict(name, **small).items()
      if 'Relpos' not in key
  }
  assert rmt_checkpoint.recognise(parameters).name == name


@pytest.mark.parametrize(
    ('plain', 'expected'),
    [
        ('rmt_t', 'rmt_t'),  # there is no rmt_t_tl
        ('rmt_s', 'rmt_s_tl'),
        ('rmt_b', 'rmt_b_tl'),
        ('rmt_l', 'rmt_l_tl'),
    ],
)
def test_a_dense_head_is_seen(plain, expected):
  """A linear layer on the last stage, `aux_head` in the released code."""
  arrays = _state_dict(plain, num_classes=7)
  width = named.MODELS[plain].widths[-1]
  assert rmt_checkpoint.recognise(arrays).crop == 0.875
  arrays = arrays | {'aux_head.weight': np.zeros((7, width))}
  found = rmt_checkpoint.recognise(arrays)
  assert (found.name, found.num_classes) == (expected, 7)
  assert found.fields == factory.resolve(expected, {'dense_head': True})
  assert found.crop == 0.96


def test_another_size_needs_its_full_stages():
  arrays = released_rmt.state_dict()
  with pytest.raises(UserError, match=r'--full-stages'):
    rmt_checkpoint.recognise(arrays)
  found = rmt_checkpoint.recognise(arrays, full_stages=(3, 4))
  assert found.num_classes == 10
  fields = {**found.fields, 'drop_path_rate': 0.0}
  built = gswinrmt_jax.create_model(found.name, num_classes=10, **fields)
  assert built == released_rmt.model()
  bare = {key: a for key, a in arrays.items() if 'Relpos' not in key}
  with pytest.raises(UserError, match='heads are not known'):
    rmt_checkpoint.recognise(bare, full_stages=(3, 4))


# Names of an RMT's block and head.
_ARRAYS = {
    'layers.0.blocks.0.pos.conv.weight': np.zeros((4, 1, 3, 3)),
    'head.weight': np.zeros((2, 3)),
}


def _prefixed(prefix):
  return {f'{prefix}{name}': array for name, array in _ARRAYS.items()}


@pytest.mark.parametrize(
    'prefix',
    ['', 'module.', 'model.', 'net.', '_orig_mod.', 'model._orig_mod.module.'],
)
def test_any_prefix_is_stripped(prefix):
  where, found, others = rmt_checkpoint.unwrap(
      {'state_dict': {'criterion.weight': np.zeros(3), **_prefixed(prefix)}}
  )
  assert where == 'state_dict'
  assert found.keys() - {'criterion.weight'} == _ARRAYS.keys()
  assert others == (['criterion.weight'] if prefix else [])


def test_several_models_are_told_apart_by_the_key():
  both = {'state_dict': {**_prefixed('net.'), **_prefixed('ema.module.')}}
  with pytest.raises(
      UserError, match=r'--key`, of state_dict/ema\.module, state_dict/net$'
  ):
    rmt_checkpoint.unwrap(both)
  for key in ('state_dict/ema', 'state_dict/ema.module', 'state_dict/net'):
    where, found, others = rmt_checkpoint.unwrap(both, key)
    assert (where, found.keys(), others) == (key, _ARRAYS.keys(), [])


def test_wrappers_and_entries():
  wrapped = {
      'model': _prefixed('module.'),
      'model_ema': {'state_dict': _ARRAYS},
  }
  where, found, _ = rmt_checkpoint.unwrap(wrapped)
  assert where == 'model' and found.keys() == _ARRAYS.keys()
  where, found, _ = rmt_checkpoint.unwrap(wrapped, 'model_ema')
  assert where == 'model_ema/state_dict' and found.keys() == _ARRAYS.keys()
  with pytest.raises(UserError, match=r'no entry ema .*model, model_ema'):
    rmt_checkpoint.unwrap(wrapped, 'ema')
  # A lone tensor or a name may accompany the weights.
  mixed = {'model': 'rmt_t', 'best': np.zeros(()), 'state_dict': _ARRAYS}
  assert rmt_checkpoint.unwrap(mixed)[0] == 'state_dict'
  endless = {}
  endless['model'] = endless
  for nothing in (endless, {'epoch': 3}, [1, 2], None):
    with pytest.raises(UserError, match='no weights'):
      rmt_checkpoint.unwrap(nothing)


def test_something_else_is_no_rmt():
  with pytest.raises(UserError, match='is not an RMT'):
    rmt_checkpoint.recognise({'conv1.weight': np.zeros((64, 3, 7, 7))})


def test_odd_shapes_are_one_line():
  odd = {'layers.0.blocks.0.pos.conv.weight': np.zeros(())}
  with pytest.raises(UserError, match='its arrays have other shapes'):
    rmt_checkpoint.recognise(
        released_rmt.state_dict() | odd, full_stages=(3, 4)
    )


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
@pytest.mark.parametrize('name', ['rmt_t', 'rmt_s', 'rmt_b', 'rmt_l'])
def test_decay_ranges_are_found_again(name, dtype):
  arrays = {
      key: array.astype(jnp.dtype(dtype)) if 'decay' in key else array
      for key, array in _state_dict(name, num_classes=7).items()
  }
  found, _ = rmt_checkpoint._sizes(arrays)
  assert found['decay_ranges'] == named.MODELS[name].decay_ranges


def test_a_new_field_of_models_is_compared_with_the_released(monkeypatch):
  """So that it cannot be left out of the file in silence."""

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class New(architecture.Architecture):
    temperature: float = architecture._design(1.0, 'Of the softmax.')

  released = New(**dataclasses.asdict(named.MODELS['rmt_t']))
  monkeypatch.setitem(named.MODELS, 'rmt_t', released)
  state_dict_lib.check_is_rmt(released)
  with pytest.raises(ValueError, match=r'this model has temperature=2\.0'):
    state_dict_lib.check_is_rmt(dataclasses.replace(released, temperature=2.0))
