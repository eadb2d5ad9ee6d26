"""Equations and kernels: pure functions of arrays."""

from gswinrmt_jax.ops.conv import conv3x3
from gswinrmt_jax.ops.depthwise import depthwise_conv
from gswinrmt_jax.ops.retention import full_retention, retention
from gswinrmt_jax.ops.swat import swat

# Attention forms by name: a new one is a file here and a line in this table.
FORMS = {'softmax': retention, 'sigmoid': swat}

__all__ = [
    'FORMS',
    'conv3x3',
    'depthwise_conv',
    'full_retention',
    'retention',
    'swat',
]
