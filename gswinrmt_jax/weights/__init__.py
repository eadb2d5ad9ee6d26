"""Loads, stores and converts trained weights."""

from gswinrmt_jax.weights.state_dict import (
    from_torch_state_dict,
    match_state_dict,
    to_torch_state_dict,
)

__all__ = [
    'from_torch_state_dict',
    'match_state_dict',
    'to_torch_state_dict',
]
