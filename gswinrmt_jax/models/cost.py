"""Parameters and multiply-accumulates of a model, counted on its program."""

import collections
from collections.abc import Iterable, Iterator
import dataclasses
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from gswinrmt_jax import ops
from gswinrmt_jax.models import factory, layers
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.models.dense.segmenter import Segmenter

# Operations per element, as fvcore has them.
_NORMS = {
    layers.LayerNorm: ('layer norm', 5),
    layers.BatchNorm: ('batch norm', 2),
}
# Equations that are written as products with matrices of mostly zeros.
_RESAMPLING = ('resize_nearest', 'resize_bilinear', 'adaptive_average_pool')
_PRODUCTS = ('convolution', 'linear', 'attention')


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one image.

  Attributes:
    parameters: Trainable numbers.
    operations: Multiply-accumulates of 'convolution', 'linear' (products with
      a weight) and 'attention' (products of two maps); operations of
      'layer norm' and 'batch norm'. Only those that the model has.
  """

  parameters: int
  operations: dict[str, int]

  @property
  def macs(self) -> int:
    """All operations, as the papers count them.

    RMT's 'GFLOPs' are these over 2^30: multiply-accumulates of the products,
    with 5 and 2 operations per element of a layer and a batch norm; softmax,
    activations, rotation, decay and resampling are not counted.
    """
    return sum(self.operations.values())

  @property
  def macs_without_attention(self) -> int:
    """All operations but products of two maps.

    RMT's 'FLOPs' of detectors and segmenters are these in units of 10^9: the
    counters of mmdetection and mmsegmentation see layers, not products.
    """
    return self.macs - self.operations.get('attention', 0)

  @property
  def product_macs(self) -> int:
    """Those of matmuls and convolutions alone, which a matrix unit could do."""
    return sum(self.operations.get(kind, 0) for kind in _PRODUCTS)

  @property
  def flops(self) -> int:
    """Floating-point operations: two for a multiply-accumulate."""
    return self.macs + self.product_macs


def total(parts: Iterable[Cost]) -> Cost:
  """Returns the cost of all parts together."""
  parameters, operations = 0, collections.Counter()
  for part in parts:
    parameters += part.parameters
    operations.update(part.operations)
  return Cost(parameters, dict(operations))


def count(model: Backbone | Segmenter, image_size: tuple[int, int]) -> Cost:
  """Counts the cost of a model for one image, without running it.

  Windows are counted as the windows they are ('cyclic', padding included),
  however the model computes them. The auxiliary head of a segmenter has
  parameters, but no operations: it acts in training alone.

  Args:
    model: Any of the family.
    image_size: Height and width.

  Raises:
    ValueError: If the model does not take such images.
  """
  shape = (*image_size, 3)
  variables = factory.variable_shapes(model, shape)
  operations = collections.Counter()

  def count_norm(call, args, kwargs, context):
    y = call(*args, **kwargs)
    kind = _NORMS.get(type(context.module))
    if kind and context.method_name == '__call__':
      operations[kind[0]] += kind[1] * y.size
    return y

  as_windows = ops.implementations(attention='cyclic')
  with nn.intercept_methods(count_norm), ops.plain(), as_windows:
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


def _product(equation) -> tuple[str, int]:
  """Returns what kind of product an equation is, '' for none, and its size."""
  if equation.primitive.name == 'dot_general':
    (contracted, _), (batch, _) = equation.params['dimension_numbers']
    left = equation.invars[0].aval.shape
    size = math.prod(equation.outvars[0].aval.shape) * math.prod(
        left[axis] for axis in contracted
    )
    return 'attention' if batch else 'linear', size
  if equation.primitive.name == 'conv_general_dilated':
    kernel = equation.invars[1].aval.shape
    out_axis = equation.params['dimension_numbers'].rhs_spec[0]
    size = math.prod(equation.outvars[0].aval.shape)
    return 'convolution', size * math.prod(kernel) // kernel[out_axis]
  return '', 0


def _equations(jaxpr: Any) -> Iterator[Any]:
  """Yields the equations of a program, those inside of others too."""
  for equation in jaxpr.eqns:
    if equation.params.get('name') in _RESAMPLING:
      continue
    yield equation
    for value in jax.tree.leaves(
        equation.params, is_leaf=lambda leaf: hasattr(leaf, 'eqns')
    ):
      inner = getattr(value, 'jaxpr', value)  # closed ones have one inside
      if hasattr(inner, 'eqns'):
        yield from _equations(inner)
