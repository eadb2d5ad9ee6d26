"""Equations and kernels: pure functions of arrays."""

from gswinrmt_jax.ops.conv import conv3x3
from gswinrmt_jax.ops.depthwise import depthwise_conv
from gswinrmt_jax.ops.retention import full_retention
from gswinrmt_jax.ops.retention import retention
from gswinrmt_jax.ops.swat import swat

__all__ = ['conv3x3', 'depthwise_conv', 'full_retention', 'retention', 'swat']
