"""Cost of the detectors in RMT's paper, without building them.

RetinaNet, Mask R-CNN and Cascade Mask R-CNN with the settings of mmdetection:
80 classes, 256 channels in pyramid and heads, 1000 proposals, 100 masks. They
read the maps of a backbone with `feature_norm`.
"""

from collections.abc import Callable, Iterator, Sequence

from gswinrmt_jax.models import cost
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.cost import Cost

CLASSES = 80
_WIDTH = 256
_PROPOSALS, _MASKS = 1000, 100
_BOX, _MASK = 7 * 7, 14 * 14  # positions of the map pooled for each


def _conv(side, inputs, outputs, positions, *, norm=False):
  """Returns the cost of a convolution with bias, or with BN instead."""
  weights = side**2 * inputs * outputs
  operations = {'convolution': weights * positions}
  if norm:
    operations['batch norm'] = 2 * outputs * positions
  return Cost(weights + outputs * (1 + norm), operations)


def _linear(inputs, outputs, times):
  weights = inputs * outputs
  return Cost(weights + outputs, {'linear': weights * times})


def _pyramid(widths, sizes):
  """Yields a lateral and an output convolution per map."""
  for width, positions in zip(widths, sizes, strict=True):
    yield _conv(1, width, _WIDTH, positions)
    yield _conv(3, _WIDTH, _WIDTH, positions)


def _retina_net(widths, sizes):
  """Yields maps 2 to 4, two coarser ones, and two towers with 9 anchors."""
  *_, sixth, seventh = sizes
  every = sum(sizes[1:])
  yield from _pyramid(widths[1:], sizes[1:4])
  yield _conv(3, widths[-1], _WIDTH, sixth)
  yield _conv(3, _WIDTH, _WIDTH, seventh)
  yield from 8 * [_conv(3, _WIDTH, _WIDTH, every)]
  yield _conv(3, _WIDTH, 9 * CLASSES, every)
  yield _conv(3, _WIDTH, 9 * 4, every)


def _proposals(widths, sizes):
  """Yields the pyramid, with a fifth map by pooling, and RPN with 3 anchors."""
  every = sum(sizes[:5])
  yield from _pyramid(widths, sizes[:4])
  yield _conv(3, _WIDTH, _WIDTH, every)
  yield _conv(1, _WIDTH, 3, every)
  yield _conv(1, _WIDTH, 3 * 4, every)


def _boxes(*hidden):
  """Yields hidden layers, classes with background, and a box per class."""
  yield from hidden
  yield _linear(1024, CLASSES + 1, _PROPOSALS)
  yield _linear(1024, 4 * CLASSES, _PROPOSALS)


def _masks():
  yield from 4 * [_conv(3, _WIDTH, _WIDTH, _MASK * _MASKS)]
  yield _conv(2, _WIDTH, _WIDTH, _MASK * _MASKS)  # doubles the side
  yield _conv(1, _WIDTH, CLASSES, 4 * _MASK * _MASKS)


def _mask_rcnn(widths, sizes):
  flat = _BOX * _WIDTH
  yield from _proposals(widths, sizes)
  yield from _boxes(
      _linear(flat, 1024, _PROPOSALS), _linear(1024, 1024, _PROPOSALS)
  )
  yield from _masks()


def _cascade(widths, sizes):
  """Yields three box heads of convolutions and a layer, three mask heads."""
  conv = _conv(3, _WIDTH, _WIDTH, _BOX * _PROPOSALS, norm=True)
  yield from _proposals(widths, sizes)
  for _ in range(3):
    yield from _boxes(*4 * [conv], _linear(_BOX * _WIDTH, 1024, _PROPOSALS))
    yield from _masks()


# Detector -> function that yields the cost of each layer after the backbone,
# given the widths of the maps and the positions of these and two coarser maps.
_Layers = Callable[[Sequence[int], Sequence[int]], Iterator[Cost]]
DETECTORS: dict[str, _Layers] = {
    'RetinaNet': _retina_net,
    'Mask R-CNN': _mask_rcnn,
    'Cascade Mask R-CNN': _cascade,
}


def heads(name: str, arch: Architecture, image_size: tuple[int, int]) -> Cost:
  """Returns the cost of a detector without its backbone.

  Args:
    name: A name in `DETECTORS`.
    arch: Components of the backbone, which has four stages.
    image_size: Height and width, in pixels.
  """
  strides = [*arch.strides, 2 * arch.stride, 4 * arch.stride]
  height, width = image_size
  sizes = [-(-height // s) * -(-width // s) for s in strides]
  return cost.total(DETECTORS[name](arch.widths, sizes))
