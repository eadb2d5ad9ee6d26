"""Kernels of our own, by Pallas: what XLA does in several passes, in one."""

from gswinrmt_jax.pallas.attention import retention, swat
from gswinrmt_jax.pallas.ffn_branch import gelu_conv_norm

FORMS = {'softmax': retention, 'sigmoid': swat}

__all__ = ['FORMS', 'gelu_conv_norm', 'retention', 'swat']
