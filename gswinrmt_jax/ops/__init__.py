"""Equations and kernels: pure functions of arrays."""

from gswinrmt_jax.ops.batch_norm import batch_norm
from gswinrmt_jax.ops.bias import add_bias
from gswinrmt_jax.ops.conv import conv3x3
from gswinrmt_jax.ops.dense import (
    dense,
    dense_gelu,
    dense_parts,
    residual_dense,
)
from gswinrmt_jax.ops.depthwise import depthwise_conv
from gswinrmt_jax.ops.gate import sigmoid_gate
from gswinrmt_jax.ops.gelu import biased_gelu, gelu
from gswinrmt_jax.ops.layer_norm import layer_norm, normalize
from gswinrmt_jax.ops.linear import (
    causal_retention,
    full_linear_retention,
    linear_retention,
    normalize_heads,
)
from gswinrmt_jax.ops.retention import full_retention, retention
from gswinrmt_jax.ops.swat import swat

# Attention forms by name: a new one is a file here and a line in a table.
FORMS = {'softmax': retention, 'sigmoid': swat, 'linear': linear_retention}
# Those over all pairs of tokens at once, for `full_stages`.
FULL_FORMS = {
    'softmax': full_retention,
    'linear': full_linear_retention,
    'causal': causal_retention,
}

__all__ = [
    'FORMS',
    'FULL_FORMS',
    'add_bias',
    'batch_norm',
    'biased_gelu',
    'causal_retention',
    'conv3x3',
    'dense',
    'dense_gelu',
    'dense_parts',
    'depthwise_conv',
    'full_linear_retention',
    'full_retention',
    'gelu',
    'layer_norm',
    'linear_retention',
    'normalize',
    'normalize_heads',
    'residual_dense',
    'retention',
    'sigmoid_gate',
    'swat',
]
