"""Settings every test runs under."""

import os

# Nearly all of the time goes into compiling what runs once. XLA's own passes,
# fusion among them, stay; LLVM's are left out. Before JAX starts, and for the
# processes that tests start as well.
os.environ.setdefault('XLA_FLAGS', '--xla_backend_optimization_level=0')
# Has commands that run here leave malloc as it is (`training/allocation.py`).
os.environ.setdefault('MALLOC_PERTURB_', '0')

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
