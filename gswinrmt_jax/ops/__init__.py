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

from gswinrmt_jax.ops.attention import axial_weights as axial_weights
from gswinrmt_jax.ops.attention import causal_weights as causal_weights
from gswinrmt_jax.ops.attention import FORMS as FORMS
from gswinrmt_jax.ops.attention import FULL_FORMS as FULL_FORMS
from gswinrmt_jax.ops.attention import full_retention as full_retention
from gswinrmt_jax.ops.attention import full_weights as full_weights
from gswinrmt_jax.ops.attention import linear_weights as linear_weights
from gswinrmt_jax.ops.attention import retention as retention
from gswinrmt_jax.ops.attention import sigmoid_weights as sigmoid_weights
from gswinrmt_jax.ops.attention import softmax_weights as softmax_weights
from gswinrmt_jax.ops.attention import swat as swat
from gswinrmt_jax.ops.layers import add_bias as add_bias
from gswinrmt_jax.ops.layers import batch_norm as batch_norm
from gswinrmt_jax.ops.layers import batch_statistics as batch_statistics
from gswinrmt_jax.ops.layers import conv3x3 as conv3x3
from gswinrmt_jax.ops.layers import dense as dense
from gswinrmt_jax.ops.layers import depthwise_conv as depthwise_conv
from gswinrmt_jax.ops.layers import gelu as gelu
from gswinrmt_jax.ops.layers import layer_norm as layer_norm
from gswinrmt_jax.ops.layers import plain_conv as plain_conv
from gswinrmt_jax.ops.layers import scale_channels as scale_channels
from gswinrmt_jax.ops.layers import wide as wide
from gswinrmt_jax.ops.layers import wide_dtype as wide_dtype
from gswinrmt_jax.ops.positions import rotate_halves as rotate_halves
from gswinrmt_jax.ops.positions import rotate_interleaved as rotate_interleaved
from gswinrmt_jax.ops.resampling import (
    adaptive_average_pool as adaptive_average_pool,
)
from gswinrmt_jax.ops.resampling import resize_bilinear as resize_bilinear
from gswinrmt_jax.ops.resampling import resize_nearest as resize_nearest
