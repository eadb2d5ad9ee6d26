"""The equations of the papers, numbered, as pure functions of arrays.

    retention         Gated-SwinRMT, eq. 3; RMT, eq. 5, over all pairs of tokens
    swat              Gated-SwinRMT, eq. 7
    linear_retention  RMT, eq. 2 to 4: retention without softmax
    axial             attention along rows, then columns, or over all pairs
    windows           shifted windows and masks (Gated-SwinRMT, eq. 9; Swin)
    positions         rotation (Gated-SwinRMT, eq. 4), Manhattan distance,
                      decay (RMT, eq. 8), ALiBi
    layers            linear layers, convolutions, norms, GELU
    resampling        nearest, bilinear, adaptive average pooling
    padding           images of several sizes in one batch
    image_pairs       images mixed with their neighbours in the batch

Equations 5 (gate), 6 (LCE) and 8 (SwiGLU) are in `models.attention`. All are
plain `jnp`, differentiated by JAX.
`gswinrmt_jax.fast` has faster implementations of some (see `ops.equation`).
Inside `with ops.plain():`, only implementations that `ops.implementations`
names are used. Importing the file of an attention form here makes it a
`score_fn` of the models.
"""

from gswinrmt_jax.ops.axial import FORMS, FULL_FORMS
from gswinrmt_jax.ops.equation import (
    CHOICES,
    implementations,
    plain,
    wide,
    wide_dtype,
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
    normalize_heads,
)
from gswinrmt_jax.ops.positions import rotate_halves, rotate_interleaved
from gswinrmt_jax.ops.resampling import (
    adaptive_average_pool,
    resize_bilinear,
    resize_nearest,
)
from gswinrmt_jax.ops.retention import full_retention, retention
from gswinrmt_jax.ops.swat import swat

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
    'normalize_heads',
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
