"""Weights of other frameworks, in and out."""

from gswinrmt_jax.interop.state_dict import (
    from_torch_state_dict,
    match_state_dict,
    to_torch_state_dict,
)

__all__ = [
    'from_torch_state_dict',
    'match_state_dict',
    'to_torch_state_dict',
]
