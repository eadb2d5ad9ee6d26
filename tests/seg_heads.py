"""Reference values of mmsegmentation's Semantic FPN and UperNet, in float64.

`tests/fixtures/seg_heads.npz` has small heads with random weights under PyTorch
names (`fpn/sd/`, `uper/sd/`), the feature maps of an image of 73 x 107 pixels
(`b/`), eval logits, a training step without dropout (`train/`), three ways of
resampling (`ops/`), and predictions and labels with their mIoU (`miou/`). Of
float64 arrays of more than 200 elements every 13th is stored, which covers each
channel and position.
"""

import functools
import json
import pathlib

import jax
import numpy as np

from gswinrmt_jax.models.dense.segmenter import create_segmenter

EVERY = 13
_FILE = pathlib.Path(__file__).parent / 'fixtures' / 'seg_heads.npz'


@functools.cache
def arrays():
  """Returns the file as `{name: array}`."""
  with np.load(_FILE) as file:
    return {name: file[name] for name in file.files}


def config():
  """Returns the sizes of the heads."""
  return json.loads(str(arrays()['config_json']))


def model(head, **changes):
  """Returns a segmenter with these heads, without dropout."""
  sizes, settings = config(), config()[head]
  channels = settings.get('head_channels', settings.get('channels'))
  fields = {
      'head': head,
      'num_classes': sizes['classes'],
      'channels': channels,
      'neck_channels': settings.get('neck_channels', 0),
      'auxiliary_channels': settings.get('auxiliary_channels', 0),
      'dropout_rate': 0.0,
      'dtype': np.float64,
      'widths': sizes['widths'],
      'depths': (1, 1, 1, 1),
      'num_heads': (1, 1, 1, 1),
  }
  return create_segmenter('rmt_t', **fields | changes)


def state_dict(head):
  """Returns the weights by their PyTorch names, in float64."""
  prefix = f'{head}/sd/'
  return {
      name.removeprefix(prefix): np.float64(array)
      for name, array in arrays().items()
      if name.startswith(prefix)
  }


def maps():
  """Returns the feature maps of the image, from fine to coarse."""
  return [jax.numpy.float64(arrays()[f'b/map{i}']) for i in range(4)]


def compare(got, want, name, *, within):
  """Compares an array with one that may be stored in part."""
  got = np.asarray(got)
  if got.shape != want.shape:
    assert want.shape == (-(-got.size // EVERY),), name
    got = got.ravel()[::EVERY]
  np.testing.assert_allclose(got, want, rtol=0, atol=within, err_msg=name)
