"""Settings every test runs under."""

import jax
from jaxtyping import install_import_hook

# A missing axis fails here instead of broadcasting in silence.
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Annotated shapes are checked. Only here: a train state is a tree, and tree
# maps fill its fields with things that are no arrays.
install_import_hook(
    [f'gswinrmt_jax.{part}' for part in ('ops', 'models', 'augment', 'maps')],
    'beartype.beartype',
)
