"""Attention, decay, gate and Grad-CAM maps of an image: arrays and plots."""

from gswinrmt_jax.maps.computation import compute, grad_cam, Maps, StageMaps
from gswinrmt_jax.maps.drawing import write

__all__ = ['Maps', 'StageMaps', 'compute', 'grad_cam', 'write']
