"""What segmenters and detectors have in common: a backbone as a submodule."""

from flax import linen as nn
from flax.typing import Dtype

from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.backbone import Backbone


class DenseModel(nn.Module):
  """A model on the feature maps of a backbone.

  Attributes:
    backbone: The backbone, without a head.
  """

  backbone: Backbone

  @property
  def arch(self) -> Architecture:
    """The components of the backbone."""
    return self.backbone.arch

  @property
  def dtype(self) -> Dtype:
    """Computation dtype; parameters are float32, logits at least float32."""
    return self.backbone.dtype
