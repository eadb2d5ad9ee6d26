"""Tests that a model gives padded images the output of the bare ones."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import random_variables

import gswinrmt_jax

_TINY = {
    'widths': (8, 12),
    'depths': (1, 1),
    'num_heads': (2, 3),
    'mlp_ratios': (2.0, 2.0),
    'layer_scale': (0.0, 0.5),
    'decay_ranges': (4.0, 6.0),
    'drop_path_rate': 0.0,
}
# A block with windows and one with shifted windows, on maps of 1 to 12 rows.
_WINDOWS = {'window_size': 5, 'depths': (1, 2)}
_MODELS = {
    'rmt': ('rmt_t', {'full_stages': (2,)}),
    'retention': ('retention_compact', _WINDOWS),
    'swat': ('swat_compact', _WINDOWS),
}
_SIDE = 96


def _model(system, **fields):
  name, own = _MODELS[system]
  return gswinrmt_jax.create_model(name, num_classes=3, **_TINY | own | fields)


def _images(rng, count):
  return [
      rng.normal(size=(*rng.integers(8, _SIDE + 1, 2), 3)).astype(np.float32)
      for _ in range(count)
  ]


@pytest.mark.parametrize('system', _MODELS)
def test_a_padded_image_gives_what_it_gives_by_itself(system):
  """Against the oracle on each bare image; two batches, one compilation."""
  model, rng = _model(system), np.random.default_rng(0)
  shape = (1, _SIDE, _SIDE, 3)
  variables = random_variables.nested(model, shape)
  flat = random_variables.flat(model, shape)
  config = {
      'system': system,
      'depths': model.arch.depths,
      'num_heads': model.arch.num_heads,
      'window_size': model.arch.window_size,
      'decay_range': model.arch.decay_ranges,
      'full_stages': model.arch.full_stages,
      'head': model.arch.head,
  }

  @jax.jit
  def run(x, extents):
    logits, found = model.apply(
        variables,
        x,
        train=False,
        extents=extents,
        mutable=['intermediates'],
        capture_intermediates=lambda _, method: method == 'features',
    )
    (maps,) = found['intermediates']['features']
    return maps | {'logits': logits}

  for _ in range(2):
    images = _images(rng, 4)
    got = jax.device_get(run(*random_variables.padded(images, _SIDE, rng)))
    for index, image in enumerate(images):
      for key, want in oracle.forward(flat, image[None], config).items():
        if key != 'stem':
          found = got[key][index]
          if key != 'logits':
            height, width = want.shape[1:3]
            assert not found[height:].any() and not found[:, width:].any()
            found = found[:height, :width]
          error = np.abs(found - want[0]).max() / np.abs(want).max()
          assert error < 1e-5, (key, image.shape, error)
  assert run._cache_size() == 1


# As `_WINDOWS`, in a model of one stage, with what SWAT has beside the sigmoid.
_ONE_STAGE = {
    'widths': (8,),
    'depths': (2,),
    'num_heads': (2,),
    'mlp_ratios': (2.0,),
    'layer_scale': (0.5,),
    'decay_ranges': (4.0,),
    'stem': 'patch',
    'swiglu': True,
    'alibi': 'signed',
}


@pytest.mark.parametrize(
    ('system', 'fields'),
    [
        pytest.param('rmt', {'stem': 'patch'}, marks=pytest.mark.slow),
        ('retention', _ONE_STAGE),
    ],
)
def test_gradients_and_statistics_of_training(system, fields):
  """Two images of the same size also form an unpadded batch.

  RMT has BatchNorm, in front of the second stage and in the head. Weights of
  the softmax could become NaN where a window has padding alone; the sigmoid's
  could not.
  """
  model, rng = _model(system, **fields), np.random.default_rng(1)
  images = [rng.normal(size=(41, 57, 3)).astype(np.float32) for _ in range(2)]
  variables = random_variables.nested(model, (2, _SIDE, _SIDE, 3))

  @jax.jit
  def run(variables, x, extents):
    def loss(params, x):
      logits, state = model.apply(
          variables | {'params': params},
          x,
          train=True,
          extents=extents,
          mutable=['batch_stats'],
      )
      return jnp.square(logits - 1).sum(), (logits, state)

    grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    return grad(variables['params'], x)

  batch, extents = random_variables.padded(images, _SIDE, rng)
  got_value, (got, image) = jax.device_get(run(variables, batch, extents))
  want_value, (want, bare) = jax.device_get(
      run(variables, np.stack(images), None)
  )
  np.testing.assert_allclose(image[:, :41, :57], bare, rtol=0, atol=1e-5)
  assert not image[:, 41:].any() and not image[:, :, 57:].any()

  def check(a, b):
    assert np.abs(a - b).max() <= 1e-5 * max(1, np.abs(b).max())

  jax.tree.map(check, (got_value, got), (want_value, want))


def _logits(model, variables, x, extents=None):
  apply = functools.partial(model.apply, train=True, mutable=['batch_stats'])
  found, _ = jax.jit(apply)(variables, x, extents=extents)
  return np.asarray(found)


# Every component is one thing in one of the models, and another in another.
_FORMS = [
    {
        'dense_head': True,
        'score_fn': 'linear',
        'head_norm': True,
        'gate': True,
        'gate_fn': 'swish',
        'shift': False,
    },
    {
        'score_fn': 'causal',
        'full_stages': (1, 2),
        'position_conv': False,
        'lce': 'none',
        'ffn_conv': False,
        'ffn_norm': False,
        'stem_strides': (2, 1, 1, 1),
    },
    {
        'head': 'norm',
        'stem': 'patch_norm',
        'downsample': 'merge',
        'depths': (2, 1),
        'full_stages': (),
        'window_size': 4,
        'alibi': 'signed',
    },
]


def test_every_component_is_tried():
  tried = [_model('rmt', **fields).arch for fields in _FORMS]
  tried += [_model(system).arch for system in _MODELS]
  for field in dataclasses.fields(tried[0]):
    if field.metadata['kind'] == 'design':
      assert len({getattr(arch, field.name) for arch in tried}) > 1, field.name


@pytest.mark.parametrize('fields', _FORMS)
def test_every_form_of_a_model_takes_extents(fields):
  model, rng = _model('rmt', **fields), np.random.default_rng(2)
  images = [rng.normal(size=(37, 60, 3)).astype(np.float32) for _ in range(2)]
  variables = random_variables.nested(model, (2, _SIDE, _SIDE, 3))
  want = _logits(model, variables, jnp.stack(images))
  got = _logits(model, variables, *random_variables.padded(images, _SIDE, rng))
  assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def test_padding_has_no_part_in_the_largest_logit_or_the_embedding():
  """Logits of tokens are negative: a 0 of padding would be the largest."""
  fields = {**_ONE_STAGE, 'depths': (1,), 'dense_head': True}
  model, rng = _model('retention', **fields), np.random.default_rng(2)
  images = [rng.normal(size=(37, 60, 3)).astype(np.float32) for _ in range(2)]
  variables = random_variables.nested(model, (2, _SIDE, _SIDE, 3))
  variables['params']['dense_head']['bias'] -= 100

  @jax.jit
  def run(x, extents=None):
    apply = functools.partial(model.apply, variables, x, extents=extents)
    return apply(train=False), apply(train=False, method='embed')

  got = jax.device_get(run(*random_variables.padded(images, _SIDE, rng)))
  want = jax.device_get(run(jnp.stack(images)))
  for a, b in zip(got, want, strict=True):
    assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()


@pytest.mark.parametrize(
    'extents, said',
    [
        (jnp.ones((2, 2), jnp.int32), r'must be an array \[1, 2\] of signed i'),
        (jnp.ones((1, 2)), r'must be an array \[1, 2\] of signed .* float32'),
        (np.array([[32, 32]], np.uint16), 'signed integers, .* uint16'),
        (np.array([[32, 0]]), r'between 1 and the image, 32x32, not \[\[32, 0'),
        (np.array([[33, 32]]), 'between 1 and the image'),
    ],
)
def test_extents_that_do_not_fit_are_refused(extents, said, as_users_run):
  model = _model('rmt')
  with pytest.raises(ValueError, match=said):
    model.init(
        jax.random.key(0),
        jnp.zeros((1, 32, 32, 3)),
        train=False,
        extents=extents,
    )
