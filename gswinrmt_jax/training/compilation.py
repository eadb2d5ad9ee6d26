"""Where compiled programs are kept from one run to the next."""

import jax

from gswinrmt_jax.data import machine


def keep_programs() -> None:
  """Has JAX keep programs for an accelerator in the user's cache folder.

  Compiling for one takes minutes, mostly for choosing among kernels. Whoever
  has told JAX of a place (`JAX_COMPILATION_CACHE_DIR`) keeps it, and
  `JAX_ENABLE_COMPILATION_CACHE=false` keeps none. On a CPU nothing is kept:
  there JAX 0.10 makes what it would keep for one core.
  """
  if jax.default_backend() == 'cpu' or jax.config.jax_compilation_cache_dir:
    return
  folder = machine.cache_folder() / 'compiled'
  jax.config.update('jax_compilation_cache_dir', str(folder))
