"""Parameters and multiply-accumulates of a model, counted in its jaxpr."""

import collections
from collections.abc import Iterator
import dataclasses
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from gswinrmt_jax.models import factory, layers
from gswinrmt_jax.models.attention import Attention
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.models.dense.detector import Detector
from gswinrmt_jax.models.dense.segmenter import Segmenter
from gswinrmt_jax.ops.attention import effective_window

# Operations per element, as fvcore counts them.
_NORMS = {
    layers.LayerNorm: ('layer norm', 5),
    layers.BatchNorm: ('batch norm', 2),
}
# Not counted: these equations are written as matmuls with mostly zero matrices.
_RESAMPLING = ('resize_nearest', 'resize_bilinear', 'adaptive_average_pool')
_PRODUCTS = ('convolution', 'linear', 'attention')


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one image.

  Attributes:
    parameters: Number of trainable parameters.
    operations: Multiply-accumulates of 'convolution', 'linear' (products with
      a weight) and 'attention' (products of two feature maps); operations of
      'layer norm' and 'batch norm'. Kinds that the model lacks are left out.
  """

  parameters: int
  operations: dict[str, int]

  @property
  def macs(self) -> int:
    """All operations, as the papers count them.

    RMT's 'GFLOPs' are this number over 2^30: multiply-accumulates of matmuls
    and convolutions, plus 5 operations per element of a layer norm and 2 of a
    batch norm. Softmax, activations, rotation, decay and resampling are not
    counted.
    """
    return sum(self.operations.values())

  @property
  def macs_without_attention(self) -> int:
    """All operations except products of two feature maps.

    RMT's 'FLOPs' of segmenters and detectors are this number, in units of 10^9:
    the counter of mmsegmentation and mmdetection sees only layers.
    """
    return self.macs - self.operations.get('attention', 0)

  @property
  def product_macs(self) -> int:
    """Multiply-accumulates that a matrix unit can do: matmuls, convolutions."""
    return sum(self.operations.get(kind, 0) for kind in _PRODUCTS)

  @property
  def flops(self) -> int:
    """Floating-point operations: two per multiply-accumulate."""
    return self.macs + self.product_macs


def count(
    model: Backbone | Segmenter | Detector, image_size: tuple[int, int]
) -> Cost:
  """Counts the cost of a model for one image, without running it.

  Attention is counted within windows. As with Swin's masks, the map is first
  padded to whole windows. The auxiliary head of a segmenter counts for
  parameters but not for operations, because only training uses it. Heads on
  boxes count for as many boxes as a detector's image may have: 1,000 proposals
  and 100 masks, as released. Pooling and suppression are not counted.

  Args:
    model: A backbone, segmenter or detector.
    image_size: Height and width, in pixels.

  Raises:
    ValueError: If the model does not accept images of this size.
  """
  shape = (*image_size, 3)
  operations = collections.Counter()

  def count_call(call, args, kwargs, context):
    y = call(*args, **kwargs)
    module, method = context.module, context.method_name
    kind = _NORMS.get(type(module))
    if kind and method == '__call__':
      operations[kind[0]] += kind[1] * y.size
    elif isinstance(module, Attention) and method == 'attend':
      operations['attention'] += _attention(module, y)
    return y

  variables = factory.variable_shapes(model, shape)
  with (
      nn.intercept_methods(layers.plain_convolutions),
      nn.intercept_methods(count_call),
  ):
    program = jax.make_jaxpr(
        lambda variables, image: model.apply(variables, image, train=False)
    )(variables, jax.ShapeDtypeStruct((1, *shape), jnp.float32))
  for equation in _equations(program.jaxpr):
    kind, macs = _product(equation)
    operations[kind] += macs
  del operations['']
  parameters = sum(
      math.prod(leaf.shape) for leaf in jax.tree.leaves(variables['params'])
  )
  return Cost(parameters, dict(operations))


def _attention(module, out) -> int:
  """Returns the products `q k^T` and `A V` of all passes over one map."""
  _, height, width, channels = out.shape
  arch, stage = module.arch, module.stage
  if arch.is_full(stage):
    return 2 * (height * width) ** 2 * channels
  windows = [
      effective_window(extent, arch.window(stage), 0)[0]
      for extent in (height, width)
  ]
  padded = [
      -(-extent // window) * window
      for extent, window in zip((height, width), windows, strict=True)
  ]
  return 2 * math.prod(padded) * sum(windows) * channels


def _product(equation) -> tuple[str, int]:
  """Returns the kind of product and its multiply-accumulates.

  The kind is '' for none, and for products of two maps, which are attention's.
  """
  if equation.primitive.name == 'dot_general':
    (contracted, _), (batch, _) = equation.params['dimension_numbers']
    left = equation.invars[0].aval.shape
    size = math.prod(equation.outvars[0].aval.shape) * math.prod(
        left[axis] for axis in contracted
    )
    return '' if batch else 'linear', size
  if equation.primitive.name == 'conv_general_dilated':
    kernel = equation.invars[1].aval.shape
    out_axis = equation.params['dimension_numbers'].rhs_spec[0]
    size = math.prod(equation.outvars[0].aval.shape)
    return 'convolution', size * math.prod(kernel) // kernel[out_axis]
  return '', 0


def _equations(jaxpr: Any) -> Iterator[Any]:
  """Yields the equations of a program, including nested ones."""
  for equation in jaxpr.eqns:
    if equation.params.get('name') in _RESAMPLING:
      continue
    yield equation
    for value in jax.tree.leaves(
        equation.params, is_leaf=lambda leaf: hasattr(leaf, 'eqns')
    ):
      inner = getattr(value, 'jaxpr', value)  # a ClosedJaxpr wraps a Jaxpr
      if hasattr(inner, 'eqns'):
        yield from _equations(inner)
