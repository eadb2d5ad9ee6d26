"""Tests that each field of a recipe reaches the run, or is refused.

A run is traced for a recipe in which the field is in use, and again with
another value: its train step, the state before the first step, the first
batches, the evaluation or the schedule must differ. Nothing is compiled.
"""

import contextlib
import copy
import functools
import io
import itertools
import pathlib
import re
import tempfile
from unittest import mock

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from gswinrmt_jax import recipes, terminal
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.recipes import field as field_lib
from gswinrmt_jax.train import (
    learning_rate,
    profiler,
    train_state,
    train_step,
    trainer,
)
from gswinrmt_jax.train import run as run_lib


def _stages(count, width=8):
  """Returns the sizes of a model of so many stages of one block."""
  sizes = {
      'widths': width,
      'depths': 1,
      'num_heads': 1,
      'mlp_ratios': 1.0,
      'decay_ranges': 4.0,
      'layer_scale': 0.01,
  }
  return {f'model.{name}': count * (size,) for name, size in sizes.items()}


# Base recipes, in which as many fields as possible are in use. Most of the time
# is tracing, so the model is no larger and has no more parts than these need.
_SMALL = {
    'batch_size': 6,
    'eval_batch_size': 50,
    'num_epochs': 4,
    'dtype': 'float32',
    **_stages(1),
    'model.position_conv': False,
    'model.lce': 'none',
    'model.gate': False,
    'model.ffn_conv': False,
    'model.ffn_norm': False,
    'model.window_size': 2,
    'model.drop_path_rate': 0.5,
    'optimizer.warmup_epochs': 1.0,
}
_BASES = {
    'classes': {},
    'torchvision': {
        'ema_decay': 0.9,
        'augment.rand_augment_set': 'torchvision',
        'augment.rand_augment_std': 0.0,
        'augment.rand_augment_prob': 1.0,
        'optimizer.schedule': 'drops',
        'optimizer.drop_epochs': (1, 3),
    },
    'crops': {
        'data.storage': 'decode',
        'data.image_size': 16,
        'data.train_crop': 'random_resized',
        'optimizer.schedule': 'poly',
    },
    'tuned': {'init_from': 'digits_small'},
    'pixels': {'segmenter.head': 'fpn'},
    'uper': {'segmenter.head': 'uper'},
    'boxes': {
        'detector.head': 'retina',
        'detector.tower_channels': 8,
        'data.fit_within': (64, 64),
    },
    # With all that a Mask R-CNN has.
    'cascade': {'detector.head': 'cascade', 'detector.linear_channels': 8},
}
# Bases whose fields all show before the train step, whose tracing takes
# longest. A field that shows only there fails; its base is then no longer here.
_SHOWN_EARLY = {'crops', 'pixels', 'boxes', 'cascade'}
_DETECTOR = {
    'data.name': 'digit_boxes',
    'detector.channels': 8,
    'augment.flip': False,
    **_stages(4, width=4),
}
# The changed value of each field, and the base if it is not 'classes'.
_CHANGES = {
    'seed': (1, 'classes'),
    'dtype': ('bfloat16', 'classes'),
    'remat': ('blocks', 'classes'),
    'batch_size': (12, 'classes'),
    'accumulate_steps': (3, 'classes'),
    'eval_batch_size': (20, 'classes'),
    'num_epochs': (5, 'classes'),
    'stop_after_epochs': (1, 'classes'),
    'eval_every_epochs': (2, 'classes'),
    'checkpoint_every_steps': (7, 'classes'),
    'log_every_steps': (9, 'classes'),
    'profile_steps': ('2:3', 'classes'),
    'nan_policy': ('skip', 'classes'),
    'ema_decay': (0.9, 'classes'),
    'ema_warmup': (True, 'torchvision'),
    'model.name': ('swat_compact', 'classes'),
    'segmenter.channels': (12, 'pixels'),
    'segmenter.neck_channels': (12, 'pixels'),
    'segmenter.auxiliary_channels': (12, 'uper'),
    'segmenter.auxiliary_weight': (0.3, 'uper'),
    'segmenter.mean_over': ('all', 'uper'),
    'segmenter.head': ('fpn', 'uper'),
    'detector.channels': (12, 'boxes'),
    'detector.tower_channels': (12, 'boxes'),
    'detector.tower_depth': (2, 'boxes'),
    'detector.rpn_channels': (12, 'cascade'),
    'detector.conv_channels': (12, 'cascade'),
    'detector.linear_channels': (12, 'cascade'),
    'detector.mask_channels': (12, 'cascade'),
    'detector.head': ('mask', 'cascade'),
    'data.mask_crop': (20, 'cascade'),
    'data.without_objects': (False, 'boxes'),
    'augment.flip_vertical': (True, 'classes'),
    'augment.multi_scale': (True, 'boxes'),
    'data.train_split': ('val', 'classes'),
    'data.val_split': ('test', 'classes'),
    'data.image_size': (16, 'classes'),
    'data.normalization': ('cifar10', 'classes'),
    'data.fit_within': ((20, 12), 'pixels'),
    'data.crop_size': ((16, 8), 'pixels'),
    'data.train_crop': ('resize', 'crops'),
    'data.crop_scale': ((0.5, 0.6), 'crops'),
    'data.crop_ratio': ((2.0, 3.0), 'crops'),
    'data.eval_crop': (0.5, 'crops'),
    'data.repeats': (2, 'classes'),
    'data.storage': ('decode', 'classes'),
    'data.workers': (2, 'crops'),
    'augment.crop_padding': (3, 'classes'),
    'augment.flip': (True, 'classes'),
    'augment.resize': ((2.0, 3.0), 'pixels'),
    'augment.max_class_share': (0.01, 'pixels'),
    'augment.photometric': (True, 'uper'),
    'augment.rand_augment_set': ('timm', 'torchvision'),
    'augment.rand_augment_ops': (1, 'classes'),
    'augment.rand_augment_magnitude': (3.0, 'classes'),
    'augment.rand_augment_std': (0.1, 'classes'),
    'augment.rand_augment_prob': (0.9, 'classes'),
    'augment.erase_prob': (0.5, 'classes'),
    'augment.erase_area': ((0.1, 0.2), 'classes'),
    'augment.erase_aspect': ((0.5, 0.6), 'classes'),
    'augment.erase_fill': ('zeros', 'classes'),
    'augment.mixup_alpha': (0.7, 'classes'),
    'augment.cutmix_alpha': (0.6, 'classes'),
    'augment.mix_prob': (0.3, 'classes'),
    'augment.mix_off_epochs': (1, 'classes'),
    'label_smoothing': (0.2, 'classes'),
    'optimizer.name': ('muon', 'classes'),
    'optimizer.learning_rate': (2e-3, 'classes'),
    'optimizer.schedule': ('poly', 'classes'),
    'optimizer.power': (0.9, 'crops'),
    'optimizer.drop_epochs': ((2, 3), 'torchvision'),
    'optimizer.warmup_epochs': (2.0, 'classes'),
    'optimizer.warmup_learning_rate': (1e-5, 'classes'),
    'optimizer.final_learning_rate': (1e-6, 'classes'),
    'optimizer.weight_decay': (0.01, 'classes'),
    'optimizer.decay': ('all', 'classes'),
    'optimizer.decay_layer_scale': (True, 'classes'),
    'optimizer.freeze': ('stem', 'tuned'),
    'optimizer.freeze_statistics': (True, 'tuned'),
    'optimizer.layer_decay': (0.7, 'classes'),
    'optimizer.clip_norm': (1.0, 'classes'),
    'optimizer.b1': (0.8, 'classes'),
    'optimizer.b2': (0.99, 'classes'),
    'optimizer.eps': (1e-7, 'classes'),
}
# Changed together with another field, which must then be 0.
_WITH = {
    'num_steps': {'num_steps': 300, 'num_epochs': 0},
    'optimizer.warmup_steps': {
        'optimizer.warmup_steps': 3,
        'optimizer.warmup_epochs': 0.0,
    },
}
# Read outside of what is traced here, by code with tests of its own.
_ELSEWHERE = {
    'compile_effort': 'tests of distributed.compilation',
    'init_from': 'tests of train.fine_tuning',
    'data.dir': 'packaged data ignore it; tests of data.datasets',
    'data.name': 'commands.wrong_calls_test',
    'data.test_split': 'commands.wrong_calls_test',
    'data.label_maps': 'tests of train.token_labels',
    'token_label_weight': 'tests of train.token_labels',
    **dict.fromkeys(
        (
            'detector.anchor_scale',
            'detector.candidates',
            'detector.detections',
            'detector.proposals',
            'detector.roi_samples',
            'detector.round_extents',
            'detector.train_candidates',
            'detector.train_proposals',
        ),
        'fields of the model; detection.recipe_test',
    ),
}


def _recipe(base):
  """Returns a base recipe: tiny, with every augmentation on."""
  changes = _SMALL | _BASES[base]
  if 'init_from' in changes:  # with the sizes of these weights
    config = recipes.digits('retention_compact')
    config.update_from_flattened_dict(_BASES[base])
    return config
  if 'segmenter.head' in changes:
    config = recipes.segmentation(
        'retention_compact', changes['segmenter.head']
    )
    changes |= {
        **_stages(2),
        'data.name': 'digit_masks',
        'data.crop_size': (8, 8),
        'segmenter.channels': 8,
        'augment.flip': False,
    }
    if base == 'pixels':
      changes['segmenter.neck_channels'] = 8
  elif 'detector.head' in changes:
    config = recipes.detection('retention_compact', changes['detector.head'])
    changes |= _DETECTOR
  else:
    config = recipes.defaults('retention_compact')
    changes |= {'data.name': 'digits', 'augment.flip': False}
  config.update_from_flattened_dict(changes)
  return config


class _EvaluatedError(Exception):
  """Ends an evaluation, with its first batch."""


def _first_evaluated(*arguments, **_):
  raise _EvaluatedError(next(arguments[2]))


def _arrays(tree):
  """Returns arrays in a form that is compared at once."""
  return [
      (jax.tree_util.keystr(path), x.shape, str(x.dtype), x.tobytes())
      for path, x in jax.tree.leaves_with_path(jax.device_get(tree))
  ]


def _value_alone(fun, *, has_aux):
  """Stands in for `jax.value_and_grad`; the parameters are the gradients."""
  assert has_aux
  return lambda params, *rest: (fun(params, *rest), params)


def _program(train_step, *arguments):
  """Returns a train step as text, without its backward pass.

  Every field that shows there shows in the forward pass, too.
  """
  with mock.patch.object(jax, 'value_and_grad', _value_alone):
    text = str(jax.make_jaxpr(train_step)(*arguments))
  return re.sub(r' at 0x[0-9a-f]+', '', text)


def _first_batch(run):
  _, batch = next(run.data.train_batches(0, run.schedule.stop_step))
  return batch


def _traits(run, base):
  """Yields what an opened run does; what takes longest comes last."""
  config, schedule, trained = run.config, run.schedule, run.trainer
  yield schedule, profiler.parse(config.profile_steps, schedule.stop_step)
  rate = learning_rate.from_config(config.optimizer, schedule)
  yield jax.vmap(rate)(jnp.arange(schedule.total_steps)).tolist()
  yield type(run.data.train), getattr(run.data.train, 'workers', 0)
  target = trained.target
  yield str(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), target))
  yield jax.random.key_data(trained.key).tolist()
  batch = _first_batch(run)
  yield _arrays(batch)
  with mock.patch.object(trainer.evaluator, 'evaluate', _first_evaluated):
    with pytest.raises(_EvaluatedError) as evaluated:
      run.validate(target)
  yield _arrays(evaluated.value.args[0])
  if base not in _SHOWN_EARLY:
    yield _program(trained.train_step, target, batch, trained.key)


# Reading the data takes longer than tracing.
_open_source = functools.cache(datasets.open_source)
_load = functools.cache(datasets.load)


def _created(model, *rest, create=train_state.create, **how):
  """Creates a state of zeros, whose shapes are traced once for each model."""
  shapes = factory.variable_shapes(model, rest[-1])
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  with mock.patch.object(type(model), 'init', lambda *_, **__: zeros):
    return create(model, *rest, **how)


@contextlib.contextmanager
def _opened(config):
  """Opens a run in a folder of its own, without output."""
  with tempfile.TemporaryDirectory() as folder:
    said = terminal.Terminal(io.StringIO())
    place = pathlib.Path(folder) / 'run'
    with (
        mock.patch.object(train_state, 'create', _created),
        mock.patch.object(datasets, 'open_source', _open_source),
        mock.patch.object(datasets, 'load', _load),
        run_lib.open_run(config, place, said) as run,
    ):
      yield run


@functools.cache
def _base_traits(base):
  with _opened(_recipe(base)) as run:
    return tuple(_traits(run, base))


@pytest.mark.parametrize('base', _BASES)
def test_a_recipe_is_traced_the_same_again(base):
  expected = _base_traits(base)
  with _opened(_recipe(base)) as run:
    assert tuple(_traits(run, base)) == expected
    # Such a step is traced nowhere else.
    if base == 'cascade':
      _check_step(run)


def _check_step(run):
  """Traces a train step, which must return a state like the one it takes."""
  trained = run.trainer
  state, metrics = jax.eval_shape(
      trained.train_step, trained.target, _first_batch(run), trained.key
  )
  assert metrics['loss'].shape == ()
  for new, old in zip(
      jax.tree.leaves(state), jax.tree.leaves(trained.target), strict=True
  ):
    assert (new.shape, new.dtype) == (old.shape, old.dtype)


def test_every_field_is_changed_here():
  assert recipes.FIELDS.keys() == {*_CHANGES, *_WITH, *_ELSEWHERE}


@pytest.mark.parametrize('path', [*_CHANGES, *_WITH])
def test_another_value_changes_the_run(path):
  value, base = _CHANGES.get(path, (None, 'classes'))
  config = _recipe(base)
  assert not recipes.FIELDS[path].unread(config) or path == 'segmenter.head'
  config.update_from_flattened_dict(_WITH.get(path, {path: value}))
  recipes.check_used(config, _recipe(base))
  expected = _base_traits(base)
  with _opened(config) as run:
    pairs = itertools.zip_longest(_traits(run, base), expected)
    assert any(new != old for new, old in pairs)


# Values that make the condition of each field false.
_OFF = {
    'augment.rand_augment_ops': 0,
    'augment.erase_prob': 0.0,
    'augment.mixup_alpha': 0.0,
    'augment.cutmix_alpha': 0.0,
    'optimizer.warmup_epochs': 0.0,
    'optimizer.weight_decay': 0.0,
    'optimizer.freeze': 'backbone',
    'init_from': 'cifar10_small',
}


@pytest.mark.parametrize(
    'path', [path for path in _CHANGES if recipes.FIELDS[path].when]
)
def test_a_change_that_nothing_reads_is_refused(path):
  value, base = _CHANGES[path]
  config = recipes.defaults('retention_compact')
  if recipes.FIELDS[path].tasks == field_lib.BOXES:
    only = path == 'detector.conv_channels' or base == 'boxes'
    other = 'mask' if only else 'retina'
    config = recipes.detection('retention_compact', other)
  if recipes.FIELDS[path].tasks == field_lib.PIXELS:
    other = {'fpn': 'uper', 'uper': 'fpn'}[_BASES[base]['segmenter.head']]
    config = recipes.segmentation('retention_compact', other)
  off = _OFF.items()
  if path in ('augment.mixup_alpha', 'augment.cutmix_alpha'):
    off = {'augment.mix_prob': 0.0}.items()
  config.update_from_flattened_dict(dict(off))
  recipe = recipes.defaults('retention_compact')
  recipes.check_used(config, recipe)
  if path == 'augment.rand_augment_set':
    value = 'torchvision'
  config.update_from_flattened_dict({path: value})
  if path == 'data.workers':
    config.data.storage = 'memory'
  if path == 'optimizer.final_learning_rate':
    config.optimizer.schedule = 'drops'
  with pytest.raises(UserError, match=f'{path} is .* has no effect: it needs'):
    recipes.check_used(config, recipe)


@pytest.mark.parametrize(
    ('path', 'value', 'changes'),
    [
        ('projection', 99, {}),
        ('decay_ranges', (1.0, 1.0, 1.0, 1.0), {'decay': 'none'}),
        ('window_size', 3, {'full_stages': (1, 2, 3, 4), 'rotary': 'none'}),
        ('shift', False, {'window_size': 0}),
    ],
)
def test_a_change_that_the_model_does_not_read_is_refused(path, value, changes):
  recipe = recipes.defaults('retention_compact')
  config = recipes.defaults('retention_compact')
  config.model.update(changes)
  recipes.check_used(config, recipe)
  config.model[path] = value
  # Nor may a recipe have it.
  for own in (recipe, config):
    with pytest.raises(UserError, match=f'model.{path} is .* has no effect'):
      recipes.check_used(config, own)


def test_what_the_model_of_the_recipe_reads_may_stay():
  """Also where the recipe is complete only with the changes."""
  recipe = recipes.defaults('retention_compact')
  recipe.model.decay_ranges = (1.0, 1.0, 1.0, 1.0)
  recipe.optimizer.freeze = 'stem'
  config = recipe.copy_and_resolve_references()
  config.optimizer.freeze, config.model.decay = '', 'none'
  recipes.check_used(config, recipe)


def test_details_that_the_recipe_sets_may_stay():
  recipe = recipes.cifar10('rmt_compact')
  config = recipes.cifar10('rmt_compact')
  config.augment.erase_prob = 0.0
  recipes.check_used(config, recipe)
  config.augment.erase_area = (0.1, 0.2)
  with pytest.raises(UserError, match='above 0; without it, leave it at'):
    recipes.check_used(config, recipe)


@pytest.mark.parametrize(
    ('recipe', 'tasks'),
    [
        (recipes.segmentation('rmt_compact', 'fpn'), field_lib.CLASSES),
        (recipes.defaults('rmt_compact'), field_lib.PIXELS),
        (recipes.detection('rmt_compact', 'retina'), field_lib.PIXELS),
        (recipes.segmentation('rmt_compact', 'fpn'), field_lib.BOXES),
    ],
)
def test_a_new_field_of_the_other_task_is_refused(recipe, tasks, monkeypatch):
  """The field itself says so; nothing else has to name it."""
  new = recipes.Field('softmax', 'loss', tasks=tasks)
  monkeypatch.setitem(recipes.FIELDS, 'loss', new)
  with recipe.unlocked():
    recipe.loss = 'softmax'
  recipes.check_used(recipe, recipe)
  changed = copy.deepcopy(recipe)
  changed.loss = 'sigmoid'
  with pytest.raises(UserError, match=r"config\.loss is 'sigmoid'"):
    recipes.check_used(changed, recipe)


def test_a_field_must_say_for_which_tasks_it_is():
  with pytest.raises(TypeError, match='tasks'):
    recipes.Field('softmax', 'loss')


class _Drawn(nn.Module):
  """Returns one draw of the dropout stream."""

  @nn.compact
  def __call__(self, x, train):
    self.variable('batch_stats', 'none', jnp.zeros, ())
    scale = self.param('scale', nn.initializers.ones, ())
    return scale * jax.random.uniform(self.make_rng('dropout'))


def test_each_part_of_a_batch_has_its_own_dropout():
  """Equal draws u of all parts would give mean(u^2) = mean(u)^2."""

  def loss(apply, image, targets, key):
    drawn, updated = apply(image)
    return drawn, ({'accuracy': drawn**2}, updated)

  model, tx = _Drawn(), optax.sgd(0.0)
  step = jax.jit(
      train_step.make_train_step(
          model,
          tx,
          lambda key, batch, step: (batch, batch),
          loss,
          accumulate_steps=2,
      )
  )
  state = train_state.create(model, tx, jax.random.key(0), (2, 2, 3), ema=False)
  _, metrics = step(state, jnp.zeros((4, 2, 2, 3)), jax.random.key(1))
  assert metrics['accuracy'] - metrics['loss'] ** 2 > 1e-4


@pytest.mark.parametrize(
    ('base', 'outputs'),
    [
        ('classes', ['head']),
        ('pixels', ['classifier/conv']),
        ('uper', ['classifier/conv']),
        ('boxes', ['classes', 'boxes']),
        ('cascade', ['logits', 'deltas']),
    ],
)
def test_muon_leaves_outputs_to_adam(base, outputs):
  config = _recipe(base)
  config.optimizer.name = 'muon'
  with _opened(config) as run:
    state = run.trainer.target.opt_state
  flat = jax.tree_util.tree_flatten_with_path(state)[0]
  adam = [jax.tree_util.keystr(path) for path, _ in flat if 'adam' in str(path)]
  layers = [f"['{name}']['kernel']".replace('/', "']['") for name in outputs]
  for layer in layers:
    assert any(path.endswith(layer) for path in adam)
  muon = [jax.tree_util.keystr(path) for path, _ in flat if 'muon' in str(path)]
  assert muon and not any(path.endswith(tuple(layers)) for path in muon)
  if base in ('boxes', 'cascade'):  # of a neck or a tower
    assert any("['head']" in path for path in muon)
