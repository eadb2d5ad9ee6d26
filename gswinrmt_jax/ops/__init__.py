"""The equations of the papers, numbered, as pure functions of arrays.

    attention_forms   retention (Gated-SwinRMT, eq. 3), SWAT (eq. 7), along
                      rows, then columns; MaSA over all pairs (RMT, eq. 5)
    linear_retention  RMT, eq. 2 to 4: retention without softmax
    windows           shifted windows and masks (Gated-SwinRMT, eq. 9; Swin)
    positions         rotation (Gated-SwinRMT, eq. 4), Manhattan distance,
                      decay (RMT, eq. 8), ALiBi
    layers            linear layers, convolutions, norms, GELU
    resampling        nearest, bilinear, adaptive average pooling
    padding           images of several sizes in one batch
    image_pairs       images mixed with their neighbours in the batch
    registry          `@equation`, and the registry of implementations in `fast`

Equations 5 (gate), 6 (LCE) and 8 (SwiGLU) are in `models.attention`. All are
plain `jnp`, differentiated by JAX.
Inside `with ops.plain():`, only implementations that `ops.implementations`
names are used.
"""

import functools

from gswinrmt_jax.ops.attention_forms import (
    full_retention,
    retention,
    swat,
)
from gswinrmt_jax.ops.layers import (
    add_bias,
    batch_norm,
    batch_statistics,
    conv3x3,
    dense,
    depthwise_conv,
    gelu,
    layer_norm,
    scale_channels,
)
from gswinrmt_jax.ops.linear_retention import (
    causal_retention,
    full_linear_retention,
    linear_retention,
)
from gswinrmt_jax.ops.positions import rotate_halves, rotate_interleaved
from gswinrmt_jax.ops.registry import (
    CHOICES,
    implementations,
    plain,
    wide,
    wide_dtype,
)
from gswinrmt_jax.ops.resampling import (
    adaptive_average_pool,
    resize_bilinear,
    resize_nearest,
)

# Attention forms along rows, then columns, by `score_fn`; their arguments are
# those of `retention`. Models rotate queries and keys, as their `rotary` says.
FORMS = {
    'softmax': retention,
    'sigmoid': functools.partial(swat, rotary=False),
    'linear': linear_retention,
}
# Attention forms over all pairs of tokens, for `full_stages`.
FULL_FORMS = {
    'softmax': full_retention,
    'linear': full_linear_retention,
    'causal': causal_retention,
}

__all__ = [
    'CHOICES',
    'FORMS',
    'FULL_FORMS',
    'adaptive_average_pool',
    'add_bias',
    'batch_norm',
    'batch_statistics',
    'causal_retention',
    'conv3x3',
    'dense',
    'depthwise_conv',
    'full_linear_retention',
    'full_retention',
    'gelu',
    'implementations',
    'layer_norm',
    'linear_retention',
    'plain',
    'resize_bilinear',
    'resize_nearest',
    'retention',
    'rotate_halves',
    'rotate_interleaved',
    'scale_channels',
    'swat',
    'wide',
    'wide_dtype',
]
