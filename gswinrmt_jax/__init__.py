"""Gated-SwinRMT and RMT vision transformers in JAX."""

from gswinrmt_jax.models.factory import create_model

__version__ = '0.1.0'
__all__ = ['create_model']
