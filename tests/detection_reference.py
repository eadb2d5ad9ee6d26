"""Reference values of mmdetection's detectors, in float64.

`tests/fixtures/detection.npz` has small detectors with random weights under
PyTorch names, feature maps of three images in one canvas of 96 x 128 pixels,
the outputs, losses and gradients, and cases of each rule. Of float64 arrays of
more than 200 elements (except `assign/`) every 13th is stored, which covers
each channel and position.
"""

import functools
import json
import pathlib
import re

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.ops.assignment import Truth

EVERY = 13
FILE = pathlib.Path(__file__).parent / 'fixtures' / 'detection.npz'

_BOX, _MASK = r'roi_head.bbox_head.(\d).', r'roi_head.mask_head.(\d).'
# Modules in mmdetection and here; {0} is the first number, {1} one more, {2} is
# the second.
_MODULES = (
    (r'neck.lateral_convs.(\d).conv', 'neck/lateral{1}'),
    (r'neck.fpn_convs.(\d).conv', 'neck/output{1}'),
    (r'bbox_head.cls_convs.(\d).conv', 'class_tower_{0}'),
    (r'bbox_head.reg_convs.(\d).conv', 'box_tower_{0}'),
    (r'bbox_head.retina_cls', 'classes'),
    (r'bbox_head.retina_reg', 'boxes'),
    (r'rpn_head.rpn_conv', 'rpn/conv'),
    (r'rpn_head.rpn_cls', 'rpn/logits'),
    (r'rpn_head.rpn_reg', 'rpn/deltas'),
    (_BOX + r'shared_convs.(\d).conv', 'box_heads_{0}/convs_{2}/conv'),
    (_BOX + r'shared_convs.(\d).bn', 'box_heads_{0}/convs_{2}/norm'),
    (_BOX + r'shared_fcs.(\d)', 'box_heads_{0}/layers_{2}'),
    (_BOX + r'fc_cls', 'box_heads_{0}/logits'),
    (_BOX + r'fc_reg', 'box_heads_{0}/deltas'),
    (_MASK + r'convs.(\d).conv', 'mask_heads_{0}/convs_{2}'),
    (_MASK + r'upsample', 'mask_heads_{0}/upsample'),
    (_MASK + r'conv_logits', 'mask_heads_{0}/logits'),
)
_LEAVES = {
    'weight': 'kernel',
    'bias': 'bias',
    'running_mean': 'mean',
    'running_var': 'var',
}


@functools.cache
def arrays():
  """Returns the file as `{name: array}`."""
  with np.load(FILE) as file:
    return {name: file[name] for name in file.files}


def text(name):
  """Returns a JSON text of the file."""
  return json.loads(str(arrays()[name]))


def wide(name):
  """Returns an array that is stored completely, in float64."""
  return jnp.asarray(arrays()[name], jnp.float64)


def compare(got, want, name='', *, within=1e-10):
  """Compares an array with one that may be stored in part."""
  got = np.asarray(got)
  if got.shape != want.shape:
    assert want.shape == (-(-got.size // EVERY),), (name, got.shape)
    got = got.ravel()[::EVERY]
  np.testing.assert_allclose(got, want, rtol=0, atol=within, err_msg=name)


def _path(system, key):
  """Returns the path of a parameter from its PyTorch name."""
  module, _, leaf = key.rpartition('.')
  # Mask R-CNN has one head of each kind, and no number.
  module = re.sub(r'(roi_head.\w+)\.(?!\d)', r'\1.0.', module)
  found = re.fullmatch(r'neck.fpn_convs.([34]).conv', module)
  if found and system == 'retina':
    return f'coarse_{int(found[1]) - 3}/{_LEAVES[leaf]}'
  for pattern, path in _MODULES:
    if found := re.fullmatch(pattern, module):
      numbers = [int(each) for each in found.groups()]
      spread = [n for number in numbers for n in (number, number + 1)]
      norm = leaf == 'weight' and module.endswith('.bn')
      return f'{path.format(*spread)}/{"scale" if norm else _LEAVES[leaf]}'
  raise KeyError(key)


def _from_torch(key, array):
  """Returns an array in the layout here."""
  if 'upsample.weight' in key:
    return array.transpose(2, 3, 0, 1)
  if array.ndim == 4:
    return array.transpose(2, 3, 1, 0)
  if 'shared_fcs.0.weight' in key:  # rows are channel, row, column there
    split = array.reshape(len(array), -1, 7, 7).transpose(2, 3, 1, 0)
    return split.reshape(-1, len(array))
  return array.T


def _to_torch(key, array):
  """Returns an array in PyTorch's layout."""
  if 'upsample.weight' in key:
    return array.transpose(2, 3, 0, 1)
  if array.ndim == 4:
    return array.transpose(3, 2, 0, 1)
  if 'shared_fcs.0.weight' in key:
    split = array.reshape(7, 7, -1, array.shape[-1]).transpose(3, 2, 0, 1)
    return split.reshape(len(split), -1)
  return array.T


def variables(system):
  """Returns the variables of a head: 'params', and 'batch_stats' if any."""
  flat = {}
  prefix = f'{system}/sd/'
  for name, array in arrays().items():
    if name.startswith(prefix) and not name.endswith('num_batches_tracked'):
      key = name.removeprefix(prefix)
      kind = 'batch_stats' if '.running_' in key else 'params'
      array = _from_torch(key, array)
      flat[f'{kind}/{_path(system, key)}'] = jnp.asarray(array, jnp.float64)
  return traverse_util.unflatten_dict(flat, sep='/')


def check_tree(tree, system, kind, arrays, within):
  """Compares parameters, gradients or statistics with those of the file."""
  got = traverse_util.flatten_dict(jax.device_get(tree), sep='/')
  prefix = f'{system}/{kind}/'
  want = {
      name.removeprefix(prefix): array
      for name, array in arrays.items()
      if name.startswith(prefix)
  }
  assert got.keys() == {_path(system, key) for key in want}
  for key, array in want.items():
    compare(_to_torch(key, got[_path(system, key)]), array, key, within=within)


def maps(system):
  """Returns the feature maps of the batch, from fine to coarse."""
  return [wide(f'{system}/map{level}') for level in range(4)]


def sizes(name='images'):
  """Returns heights and widths of the images, or padded ones."""
  return jnp.asarray(arrays()[f'scene/{name}'], jnp.int32)


def truth(rows=8):
  """Returns the objects of the scene, with bitmaps of the whole images."""
  height, width = 96, 128
  boxes = np.zeros((3, rows, 4))
  labels = np.zeros((3, rows), np.int32)
  bitmaps = np.zeros((3, rows, height, width), np.uint8)
  counts = []
  for image, (h, w) in enumerate(arrays()['scene/images']):
    found = arrays()[f'scene/boxes{image}']
    count = len(found)
    counts.append(count)
    boxes[image, :count] = found
    labels[image, :count] = arrays()[f'scene/labels{image}']
    bits = np.unpackbits(arrays()[f'scene/masks{image}'])[: count * h * w]
    # RoIAlign of the image's bitmap ends at its edge; one repeated goes on.
    around = (0, 0), (0, height - h), (0, width - w)
    bitmaps[image, :count] = np.pad(bits.reshape(count, h, w), around, 'edge')
  return Truth(
      jnp.asarray(boxes),
      jnp.asarray(labels),
      jnp.arange(rows)[None] < jnp.array(counts)[:, None],
      jnp.asarray(bitmaps),
      jnp.broadcast_to(jnp.array([0.0, 0, width, height]), (3, rows, 4)),
  )
