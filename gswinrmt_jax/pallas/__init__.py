"""Kernels of our own, by Pallas: what XLA does in several passes, in one.

For one GPU that Triton compiles for. A CPU would interpret them, slowly: there
models take the equations of `gswinrmt_jax.ops`, which differ by rounding.
"""

import functools

from gswinrmt_jax.pallas.attention import attention, check_head
from gswinrmt_jax.pallas.ffn import gelu_conv_norm
from gswinrmt_jax.pallas.launch import runs_here

# Attention forms by name, as in `ops.FORMS`.
FORMS = {
    'softmax': functools.partial(attention, softmax=True),
    'sigmoid': functools.partial(attention, softmax=False),
}

__all__ = ['FORMS', 'attention', 'check_head', 'gelu_conv_norm', 'runs_here']
