"""Kernels of our own, by Pallas: what XLA does in several passes, in one.

For one GPU that Triton compiles for. A CPU would interpret them, slowly: there
models take the equations of `gswinrmt_jax.ops`, which differ by rounding.
"""

from gswinrmt_jax.pallas.attention import check_head, retention, swat
from gswinrmt_jax.pallas.ffn import gelu_conv_norm
from gswinrmt_jax.pallas.launch import runs_here

# Attention forms by name, as in `ops.FORMS`.
FORMS = {'softmax': retention, 'sigmoid': swat}

__all__ = [
    'FORMS',
    'check_head',
    'gelu_conv_norm',
    'retention',
    'runs_here',
    'swat',
]
