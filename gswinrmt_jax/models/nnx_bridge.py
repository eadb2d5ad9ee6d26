"""The models as NNX modules, through `flax.nnx.bridge`."""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn
from flax import nnx, traverse_util
from flax.typing import Array

_KINDS = {'params': nnx.Param, 'batch_stats': nnx.BatchStat}


class NNXModel(nnx.bridge.ToNNX):
  """An NNX module that wraps a Linen model and holds its variables."""

  def __call__(self, x: Array, *, train: bool, **kwargs: Any) -> Any:
    """Applies the Linen model and returns its output.

    As in Linen, the mode is an argument: `train()` and `eval()` of NNX modules
    have no effect.

    Args:
      x: Normalised images, float `[b, h, w, 3]`.
      train: Training mode: BatchNorm updates its running statistics in this
        module, and stochastic depth draws from the RNG stream 'dropout'.
      **kwargs: `method='features'` for the maps of all stages; `rngs`.
    """
    # Without `mutable` the bridge would silently drop the new statistics.
    mutable = ['batch_stats'] if train else None
    return super().__call__(x, train=train, mutable=mutable, **kwargs)


def to_nnx(
    model: nn.Module,
    variables: Mapping[str, Any],
    *,
    rngs: nnx.Rngs | None = None,
) -> NNXModel:
  """Wraps a Linen model and its variables as an NNX module.

      module = to_nnx(model, variables, rngs=nnx.Rngs(dropout=0))
      optimizer = nnx.Optimizer(module, tx, wrt=nnx.Param)
      logits = module(images, train=True)

  Args:
    model: From `create_model`.
    variables: `{'params', 'batch_stats'}`, from `init`, `load_model` or a run.
      They become `nnx.Param` and `nnx.BatchStat`.
    rngs: Random streams; training with stochastic depth needs 'dropout'.

  Returns:
    A module whose results equal those of `model.apply`. Training mode updates
    its statistics in place.

  Raises:
    ValueError: If `variables` has any other collection.
  """
  unknown = variables.keys() - _KINDS.keys()
  if unknown:
    raise ValueError(
        f'variables has {", ".join(sorted(unknown))}: it should have '
        f'{" and ".join(_KINDS)} only.'
    )
  merged = {}
  for collection, tree in variables.items():
    flat = traverse_util.flatten_dict(dict(tree))
    merged |= {path: _KINDS[collection](leaf) for path, leaf in flat.items()}
  module = NNXModel(model, rngs=rngs)
  for name, tree in traverse_util.unflatten_dict(merged).items():
    setattr(module, name, nnx.data(tree))
  return module
