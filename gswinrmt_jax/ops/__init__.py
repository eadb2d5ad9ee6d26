"""The equations of the papers, numbered, as pure functions of arrays.

    attention         retention (Gated-SwinRMT, eq. 3), SWAT (eq. 7), along
                      rows, then columns, in shifted windows (eq. 9); MaSA over
                      all pairs (RMT, eq. 5); retention without softmax (eq. 2
                      to 4)
    positions         rotation (Gated-SwinRMT, eq. 4), Manhattan distance,
                      decay (RMT, eq. 8), ALiBi
    layers            linear layers, convolutions, norms, GELU
    cpu_convolutions  faster forms of convolutions on a CPU
    resampling        nearest, bilinear, adaptive average pooling
    padding           images of several sizes in one batch
    image_pairs       images mixed with their neighbours in the batch
    anchors, boxes, assignment, nms, roi_align    of detectors

Equations 5 (gate), 6 (LCE) and 8 (SwiGLU) are in `models.attention`. JAX
differentiates all of them, except depthwise convolutions on a CPU, whose
derivative is written by hand (`cpu_convolutions.by_shifts`).
"""

from gswinrmt_jax.ops.attention import (
    axial_weights,
    causal_weights,
    FORMS,
    FULL_FORMS,
    full_retention,
    full_weights,
    linear_weights,
    retention,
    sigmoid_weights,
    softmax_weights,
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
    plain_conv,
    scale_channels,
    wide,
    wide_dtype,
)
from gswinrmt_jax.ops.positions import rotate_halves, rotate_interleaved
from gswinrmt_jax.ops.resampling import (
    adaptive_average_pool,
    resize_bilinear,
    resize_nearest,
)

__all__ = [
    'FORMS',
    'FULL_FORMS',
    'adaptive_average_pool',
    'add_bias',
    'axial_weights',
    'batch_norm',
    'batch_statistics',
    'causal_weights',
    'conv3x3',
    'dense',
    'depthwise_conv',
    'full_retention',
    'full_weights',
    'gelu',
    'layer_norm',
    'linear_weights',
    'plain_conv',
    'resize_bilinear',
    'resize_nearest',
    'retention',
    'rotate_halves',
    'rotate_interleaved',
    'scale_channels',
    'sigmoid_weights',
    'softmax_weights',
    'swat',
    'wide',
    'wide_dtype',
]
