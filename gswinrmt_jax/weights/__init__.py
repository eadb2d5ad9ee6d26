"""Loads, stores and converts trained weights."""

from gswinrmt_jax.weights.state_dict import (
    from_torch_state_dict as from_torch_state_dict,
)
from gswinrmt_jax.weights.state_dict import match_state_dict as match_state_dict
from gswinrmt_jax.weights.state_dict import (
    to_torch_state_dict as to_torch_state_dict,
)
