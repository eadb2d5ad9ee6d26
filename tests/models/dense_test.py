"""Tests necks and heads against mmsegmentation's, in float64."""

import collections
import functools
import math
import operator

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables
import seg_heads

from gswinrmt_jax import ops
from gswinrmt_jax.data import pictures
from gswinrmt_jax.evals import segmentation
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense import create, layers
from gswinrmt_jax.models.dense.segmenter import create_segmenter
from gswinrmt_jax.train import losses
from gswinrmt_jax.weights import state_dict as state_dict_lib

_HEADS = ('fpn', 'uper')


@pytest.fixture(autouse=True)
def _float64():
  with jax.enable_x64(True):
    yield


def _variables(head):
  """Returns the model of the heads, and its variables as a tree."""
  model, found = seg_heads.model(head), seg_heads.state_dict(head)
  shapes = traverse_util.flatten_dict(
      factory.variable_shapes(model, (64, 64, 3)), sep='/'
  )
  paths = [
      path for path in shapes if not path.split('/')[1].startswith('backbone')
  ]
  names = {p: state_dict_lib.released_name(p.partition('/')[2]) for p in paths}
  assert sorted(names.values()) == sorted(found)
  flat = {}
  for path, name in names.items():
    flat[path] = jnp.asarray(state_dict_lib.from_torch(name, found[name]))
    assert flat[path].shape == shapes[path].shape
  return model, traverse_util.unflatten_dict(flat, sep='/')


@functools.cache
def _evaluated(head):
  """Returns the outputs of the heads, by the names of the file."""
  model, variables = _variables(head)

  def parts(model, maps):
    found = {'logits': model.decode(maps, train=False)}
    if head == 'uper':
      return found | {'aux_logits': model.auxiliary(maps, train=False)}
    return found | {
        f'neck{i}': y for i, y in enumerate(model.neck(maps, [None] * 4))
    }

  run = jax.jit(functools.partial(model.apply, method=parts))
  found = run(variables, seg_heads.maps())
  return {f'b/{head}/{name}': each for name, each in found.items()}


@pytest.mark.parametrize('head', _HEADS)
def test_evaluation(head):
  want = seg_heads.arrays()
  for name, got in _evaluated(head).items():
    assert got.dtype == np.float64
    seg_heads.compare(got, want[name], name, within=1e-10)


@functools.cache
def _trained(head):
  """Returns a training step's results, by the names of the file."""
  model, variables = _variables(head)
  labels = jnp.asarray(seg_heads.arrays()['train/labels'])
  has_auxiliary = bool(model.auxiliary_channels)

  def loss_of(params, maps):
    def apply(x, method=None):
      """Does what `Segmenter.apply` does after its backbone."""
      del x

      def both(model, maps):
        logits = [model.decode(maps, train=True)]
        if has_auxiliary:
          logits.append(model.auxiliary(maps, train=True))
        return logits

      logits, updates = model.apply(
          {**variables, 'params': params},
          maps,
          method=both,
          mutable=['batch_stats'],
      )
      assert (method == 'logits_and_auxiliary') == has_auxiliary
      resized = [
          ops.resize_bilinear(each, size=labels.shape[1:]) for each in logits
      ]
      got.update(zip(('logits', 'aux_logits'), logits, strict=False))
      return (resized if has_auxiliary else resized[0]), updates

    got = {}
    loss, (_, updates) = losses.pixel_loss(
        apply,
        None,
        labels,
        None,
        mean_over='all',
        auxiliary_weight=0.4 * has_auxiliary,
    )
    return loss, (got, updates)

  step = jax.value_and_grad(loss_of, (0, 1), has_aux=True)
  (loss, (got, updates)), (grads, grad_maps) = jax.jit(step)(
      variables['params'], seg_heads.maps()
  )
  got['loss'] = loss
  got |= {f'grad_map{i}': each for i, each in enumerate(grad_maps)}
  for kind, tree in (('grad', grads), ('after', updates['batch_stats'])):
    for path, array in traverse_util.flatten_dict(tree, sep='/').items():
      name = state_dict_lib.released_name(path)
      got[f'{kind}/{name}'] = state_dict_lib.to_torch(name, np.asarray(array))
  return {f'train/{head}/{name}': each for name, each in got.items()}


@pytest.mark.parametrize('head', _HEADS)
def test_a_training_step(head):
  """Checks losses, BN statistics, and gradients of all weights and maps."""
  want, got = seg_heads.arrays(), _trained(head)
  beside = ('loss_decode', 'loss_decode_valid_mean', 'loss_aux')
  assert got.keys() == {
      name
      for name in want
      if name.startswith(f'train/{head}/')
      and not name.endswith((*beside, 'num_batches_tracked'))
  }
  for name, array in got.items():
    seg_heads.compare(array, want[name], name, within=1e-8)


def test_the_parts_of_the_loss():
  want = seg_heads.arrays()
  labels = jnp.asarray(want['train/labels'])
  for head in _HEADS:
    for name, part in (('decode', 'logits'), ('aux', 'aux_logits')):
      if f'train/{head}/loss_{name}' not in want:
        continue
      logits = _trained(head)[f'train/{head}/{part}']
      logits = ops.resize_bilinear(logits, size=labels.shape[1:])
      for mean_over, kind in (('all', ''), ('labelled', '_valid_mean')):
        if f'train/{head}/loss_{name}{kind}' not in want:
          continue
        loss = losses.pixel_cross_entropy(logits, labels, mean_over=mean_over)
        expected = want[f'train/{head}/loss_{name}{kind}']
        np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-10)
  with pytest.raises(ValueError, match="mean_over='any' is not one of"):
    losses.pixel_cross_entropy(logits, labels, mean_over='any')
  with pytest.raises(ValueError, match=r'labels \(1, .* must have the axes of'):
    losses.pixel_cross_entropy(logits[:2], labels[:1], mean_over='all')


@pytest.mark.parametrize('mean_over', losses.MEANS)
def test_void_pixels_alone_have_no_loss(mean_over):
  def loss(logits):
    return losses.pixel_cross_entropy(logits, void, mean_over=mean_over)

  void = jnp.full((1, 2, 2), pictures.VOID)
  found, grad = jax.jit(jax.value_and_grad(loss))(jnp.ones((1, 2, 2, 3)))
  assert found == 0 and not grad.any()


def test_the_accuracy_is_of_labelled_pixels():
  @jax.jit
  def accuracy(labels):
    _, (metrics, _) = losses.pixel_loss(
        lambda _: (logits, {}),
        None,
        labels[None, None],
        None,
        mean_over='all',
        auxiliary_weight=0,
    )
    return metrics['pixel_accuracy']

  logits = jnp.tile(jnp.array([3.0, 1, 2]), (1, 1, 3, 1))
  assert accuracy(jnp.array([0, pictures.VOID, 1])) == 0.5
  assert accuracy(jnp.array([pictures.VOID] * 3)) == 0


@pytest.mark.parametrize('label', [-1, 3, 254])
def test_labels_of_no_class_are_not_computed_on(label):
  found, one, padding = _of_labels(jnp.array([[[label, 0]]]))
  assert np.isnan(found).all()
  assert np.isnan(one['loss']) and one['confusion'].sum() == 1
  # Padding rows may contain anything.
  assert padding['loss'] == 0 and padding['confusion'].sum() == 0


@jax.jit
def _of_labels(labels):
  """Returns the losses, and the sums over an image and over a padding row."""
  logits = jnp.zeros((1, 1, 2, 3))
  found = [
      losses.pixel_cross_entropy(logits, labels, mean_over=mean_over)
      for mean_over in losses.MEANS
  ]
  one, padding = (
      segmentation.batch_sums(logits, labels, jnp.full(1, mask))
      for mask in (1.0, 0.0)
  )
  return jnp.stack(found), one, padding


def test_resampling():
  """20 maps; each is resized to several sizes, or pooled to several bins."""
  arrays = seg_heads.arrays()
  want = {
      name: array for name, array in arrays.items() if name.startswith('ops/')
  }
  maps = {k: np.float64(x) for k, x in want.items() if k.endswith('/x')}
  assert len(maps) == 20

  def resampled(x, name):
    if '/nearest/' in name:
      return ops.resize_nearest(x, size=want[name].shape[1:3])
    if '/bilinear/' in name:
      return ops.resize_bilinear(x, size=want[name].shape[1:3])
    return ops.adaptive_average_pool(x, bins=int(name.rpartition('/s')[2]))

  @jax.jit
  def run(maps):  # one program compiles faster than many
    return {
        name: resampled(maps[name.rpartition('/')[0] + '/x'], name)
        for name in want.keys() - maps.keys()
    }

  for name, y in run(maps).items():
    np.testing.assert_allclose(y, want[name], rtol=0, atol=1e-10, err_msg=name)


def test_resampling_keeps_the_dtype_and_adds_up_in_float32():
  x = jnp.full((1, 7, 5, 3), 1.01, jnp.bfloat16)
  for y in (
      ops.resize_nearest(x, size=(11, 9)),
      ops.resize_bilinear(x, size=(11, 9)),
      ops.adaptive_average_pool(x, bins=3),
  ):
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x[0, 0, 0, 0])
  assert ops.resize_bilinear(x, size=(7, 5)).shape == x.shape


def test_dropout_drops_whole_channels_of_an_image():
  """In training alone, with rescaling; the classifier copies its input here.

  Where heads have dropout: `training_mode_test`.
  """
  x = random_variables.image((2, 3, 4, 50)).astype(float)
  classifier = layers.PixelClassifier(50, 0.5, np.float64)
  copies = {'kernel': jnp.eye(50)[None, None], 'bias': jnp.zeros(50)}
  run = functools.partial(classifier.apply, {'params': {'conv': copies}}, x)
  y = run(train=True, rngs={'dropout': jax.random.key(3)})
  kept = np.asarray(y != 0).any((1, 2))  # b c
  assert 0 < kept.sum() < kept.size and (kept[0] != kept[1]).any()
  np.testing.assert_allclose(y, 2 * x * kept[:, None, None], rtol=1e-12)
  np.testing.assert_array_equal(run(train=False), x)


_SMALL = {
    'widths': (8, 8, 16, 16),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 2, 2),
    'channels': 8,
    'dtype': np.float64,
}


@pytest.mark.parametrize(
    ('name', 'head', 'more'),
    [
        (
            'swat_compact',
            'fpn',
            {
                'window_size': 4,
                'auxiliary_channels': 6,
                'feature_norm': None,  # the default, as in recipes
            },
        ),
        ('rmt_swin_t', 'uper', {'feature_norm': False}),
    ],
)
def test_any_backbone_and_any_extents(name, head, more):
  """The backbone is traced; its maps are noise, which costs no compilation."""
  model = create_segmenter(name, head=head, num_classes=7, **_SMALL | more)
  image = jnp.zeros((2, 45, 71, 3))
  start = functools.partial(
      model.init_with_output,
      train=False,
      capture_intermediates=lambda _, method: method == 'features',
  )
  found, shapes = jax.eval_shape(start, jax.random.key(0), image)
  assert found.shape == (2, 45, 71, 7) and found.dtype == np.float64
  (maps,) = shapes.pop('intermediates')['backbone']['features']
  assert {x.dtype for x in maps.values()} == {np.dtype(np.float64)}
  maps = {
      stage: np.float64(random_variables.image(x.shape))
      for stage, x in maps.items()
  }
  variables = random_variables.of_shapes(shapes)
  params = variables['params']
  normalised = 'feature_norm4' in params['backbone']
  assert normalised == (more['feature_norm'] is not False)
  assert not {'norm', 'proj', 'head'} & params['backbone'].keys()

  def run(model, image, maps):
    def known(call, args, kwargs, context):
      if context.method_name != 'features':
        return call(*args, **kwargs)
      assert args[0] is image
      return maps

    levels = list(maps.values())
    with nn.intercept_methods(known):
      coarse = [model.decode(levels, train=False)]
      logits = model(image, train=False)
      if not model.auxiliary_channels:
        return coarse, logits, None
      coarse.append(model.auxiliary(levels, train=False))
      return coarse, logits, model.logits_and_auxiliary(image, train=False)

  coarse, logits, both = jax.jit(functools.partial(model.apply, method=run))(
      variables, image, maps
  )
  assert coarse[0].shape == (2, 12, 18, 7)
  assert logits.shape == (2, 45, 71, 7) and logits.dtype == np.float64
  want = [
      jax.image.resize(x, logits.shape, 'bilinear', antialias=False)
      for x in coarse
  ]
  np.testing.assert_allclose(logits, want[0], rtol=0, atol=1e-9)
  assert ('auxiliary_head' in params) == (both is not None)
  if both:
    np.testing.assert_allclose(both[0], logits, rtol=0, atol=1e-12)
    np.testing.assert_allclose(both[1], want[1], rtol=0, atol=1e-9)
    assert (both[1] != logits).all()


def test_computing_in_bfloat16():
  model, variables = _variables('fpn')
  exact = _evaluated('fpn')['b/fpn/logits']
  half = model.clone(backbone=model.backbone.clone(dtype=jnp.bfloat16))
  run = functools.partial(half.apply, train=False, method='decode')
  logits = jax.jit(run)(variables, seg_heads.maps())
  assert logits.dtype == jnp.float32
  np.testing.assert_allclose(logits, exact, atol=0.03 * abs(exact).max())


def test_how_the_heads_start():
  """As released: bounds and standard deviations of 9,000 elements or more."""
  maps = [jnp.zeros((*x.shape[:3], 48), jnp.float32) for x in seg_heads.maps()]
  fields = {'num_classes': 150, 'channels': 64, 'dtype': jnp.float32}

  def start(model, method, *names):
    @jax.jit  # compiles the draws of these layers alone
    def params(key):
      found = model.init(key, maps, train=False, method=method)['params']
      return [
          functools.reduce(operator.getitem, name.split('/'), found)
          for name in names
      ]

    return jax.device_get(params(jax.random.key(0)))

  output, lateral, conv, last = start(
      seg_heads.model('fpn', neck_channels=48, **fields),
      'decode',
      'neck/output1',
      'neck/lateral3/bias',
      'decode_head/level1_conv0/conv',
      'decode_head/classifier/conv',
  )
  (auxiliary,) = start(
      seg_heads.model('uper', auxiliary_channels=64, **fields),
      'auxiliary',
      'auxiliary_head/classifier/conv',
  )
  kernel = output['kernel']  # Xavier, uniform
  bound = math.sqrt(6 / (9 * 48 + 9 * 48))
  assert 0.99 * bound < abs(kernel).max() <= bound
  np.testing.assert_allclose(kernel.std(), bound / math.sqrt(3), rtol=0.02)
  kernel = conv['kernel']  # normal, by fan-out
  np.testing.assert_allclose(kernel.std(), math.sqrt(2 / (9 * 64)), rtol=0.02)
  assert abs(kernel).max() > 3.5 * kernel.std()
  for classifier in (last, auxiliary):
    np.testing.assert_allclose(classifier['kernel'].std(), 0.01, rtol=0.04)
    assert not classifier['bias'].any()
  assert not lateral.any()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'head': 'unet'}, "head='unet' is not one of"),
        ({'chanels': 3}, r'no field .chanels. \(did you mean channels\?\)'),
        ({'channels': 0}, 'channels=0 must be a whole number of at least 1'),
        (
            {'neck_channels': 0},
            'neck_channels=0 must be a whole number of at least 1',
        ),
        ({'head': 'uper', 'neck_channels': 9}, 'UperNet has no neck'),
        ({'dropout_rate': 1.0}, r'dropout_rate=1.0 must be in \[0, 1\)'),
        ({'dense_head': True}, 'dense_head=True is for classifiers'),
        ({'projection': 8}, 'projection=8 is for classifiers'),
    ],
)
def test_mistakes_are_named(options, message, as_users_run):
  with pytest.raises(ValueError, match=message):
    create_segmenter('rmt_t', **{'head': 'fpn', 'num_classes': 5} | options)


def test_a_backbone_of_one_map():
  fields = {'head': 'uper', 'num_classes': 3, 'depths': (1,)}
  with pytest.raises(ValueError, match='set auxiliary_channels=0'):
    create_segmenter('rmt_deit_s', **fields)
  model = create_segmenter(
      'rmt_deit_s', **fields, auxiliary_channels=0, channels=8
  )
  logits = jax.eval_shape(
      functools.partial(model.apply, train=False),
      factory.variable_shapes(model, (64, 48, 3)),
      jax.ShapeDtypeStruct((1, 64, 48, 3), jnp.float32),
  )
  assert logits.shape == (1, 64, 48, 3)


def test_scores_are_mmsegmentations():
  """Over two batches with a padding row; one class occurs in no label."""
  want = seg_heads.arrays()
  prediction, label = want['miou/prediction'], want['miou/label']
  logits = jax.nn.one_hot(prediction, 5)
  batch_sums = jax.jit(segmentation.batch_sums)
  total = collections.Counter()
  for rows in ([0, 1], [2, 0]):
    mask = jnp.array([1.0, float(rows[1] != 0)])
    sums = batch_sums(
        logits[np.array(rows)], jnp.asarray(label[np.array(rows)]), mask
    )
    assert sums['confusion'].dtype.kind == 'i'
    total.update(jax.device_get(sums))
  np.testing.assert_array_equal(
      np.diag(total['confusion']), want['miou/intersect'].sum(0)
  )
  np.testing.assert_array_equal(
      total['confusion'].sum(1), want['miou/label_area'].sum(0)
  )
  report = segmentation.scores(total)
  assert report['images'] == 3
  for name, key in (('class_iou', 'IoU'), ('class_accuracy', 'Acc')):
    got = np.array(report[name], float)  # None is NaN
    np.testing.assert_allclose(got, want[f'miou/{key}'], rtol=1e-12)
  np.testing.assert_allclose(report['mean_iou'], want['miou/mIoU'], rtol=1e-12)
  np.testing.assert_allclose(
      report['pixel_accuracy'], want['miou/aAcc'], rtol=1e-12
  )
  assert np.isnan(want['miou/Acc']).any()  # mmsegmentation's mAcc leaves it out
  np.testing.assert_allclose(
      report['mean_accuracy'], np.nanmean(want['miou/Acc']), rtol=1e-12
  )
  text = segmentation.table(report, [f'class {i}' for i in range(5)])
  assert len({len(line) for line in text.splitlines() if line}) <= 2


def test_a_module_may_make_a_dense_model_in_its_call():
  """Its backbone and head are submodules of the model, not of that module."""
  fields = {
      'widths': (8,) * 4,
      'depths': (1,) * 4,
      'num_heads': (1,) * 4,
      'mlp_ratios': (1.0,) * 4,
      'decay_ranges': (4.0,) * 4,
      'layer_scale': (0.0,) * 4,
  }

  class Outer(nn.Module):

    @nn.compact
    def __call__(self, x):
      about = {'head': 'retina', 'num_classes': 2, 'channels': 8}
      return create.create('rmt_t', about, **fields)(x, train=False)

  image = jnp.zeros((1, 64, 64, 3))
  params = jax.eval_shape(Outer().init, jax.random.key(0), image)['params']
  ((name, inner),) = params.items()
  assert name == 'Detector_0'
  assert {'backbone', 'head'} <= inner.keys()
