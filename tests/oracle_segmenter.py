"""Semantic FPN in float64 NumPy, with loops over pixels and levels.

The counterpart of `oracle` for segmenters in evaluation mode, written from the
description of the layers. It shares no line with the package. `pooled` is the
pooling of UperNet.
"""

import math

import numpy as np
import oracle


def resized(x, height, width, rule):
  """Resamples `[b h w c]` along both axes, one row or column at a time."""
  for axis, size in ((1, height), (2, width)):
    x = np.stack([rule(x, axis, i, size) for i in range(size)], axis)
  return x


def nearest(x, axis, i, size):
  return x.take(math.floor(i * x.shape[axis] / size), axis)


def bilinear(x, axis, i, size):
  """Interpolates between pixel centres; repeats the border outside them."""
  last = x.shape[axis] - 1
  place = min(max((i + 0.5) * (last + 1) / size - 0.5, 0.0), last)
  low = math.floor(place)
  share = place - low
  high = min(low + 1, last)
  return (1 - share) * x.take(low, axis) + share * x.take(high, axis)


def pooled(x, axis, i, bins):
  extent = x.shape[axis]
  start, end = math.floor(i * extent / bins), math.ceil((i + 1) * extent / bins)
  return x.take(range(start, end), axis).mean(axis)


def conv(tree, x):
  """Applies a zero-padded convolution; its bias is optional."""
  return oracle.conv({'bias': 0.0, **tree}, x)


def conv_bn(params, statistics, name, x):
  x = conv(params[name]['conv'], x)
  x = oracle.batch_norm(params[name]['norm'], statistics[name]['norm'], x)
  return np.maximum(x, 0.0)


def pyramid(params, maps):
  """Applies the neck: adds coarse maps to finer ones, then 3x3 convolutions."""
  merged = [conv(params[f'lateral{i + 1}'], x) for i, x in enumerate(maps)]
  for i in reversed(range(len(maps) - 1)):
    size = maps[i].shape[1:3]
    merged[i] = merged[i] + resized(merged[i + 1], *size, nearest)
  return [conv(params[f'output{i + 1}'], x) for i, x in enumerate(merged)]


def semantic_fpn(params, statistics, maps):
  total = 0.0
  for i, x in enumerate(maps):
    for j in range(max(1, i)):
      x = conv_bn(params, statistics, f'level{i + 1}_conv{j}', x)
      if i:
        x = resized(x, 2 * x.shape[1], 2 * x.shape[2], bilinear)
    total = total + resized(x, *maps[0].shape[1:3], bilinear)
  return conv(params['classifier']['conv'], total)


def auxiliary(params, statistics, maps):
  x = conv_bn(params, statistics, 'conv', maps[-2])
  return conv(params['classifier']['conv'], x)


def forward(variables, image, config):
  """Returns the logits of the image and the auxiliary logits.

  The arguments are those of `oracle.forward`; the backbone has `feature_norm`.
  """
  tree = oracle.nest(variables)
  params, statistics = tree['params'], tree['batch_stats']
  backbone = params['backbone']
  found = oracle.features(backbone, statistics['backbone'], image, config)
  maps = []
  for stage in range(1, 5):
    x, norm = found[f'stage{stage}'], backbone[f'feature_norm{stage}']
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    maps.append(x * norm['scale'] + norm['bias'])
  decoder, side = (
      (params[name], statistics[name])
      for name in ('decode_head', 'auxiliary_head')
  )
  out = {
      'logits': semantic_fpn(*decoder, pyramid(params['neck'], maps)),
      'auxiliary': auxiliary(*side, maps),
  }
  size = image.shape[1:3]
  return {name: resized(x, *size, bilinear) for name, x in out.items()}
