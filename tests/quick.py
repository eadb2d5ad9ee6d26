"""Compilation for tests: what runs once need not run fast."""

import jax


def jit(function, **options):
  """`jax.jit` without optimisation, which takes a third of the time."""
  return jax.jit(
      function,
      compiler_options={'xla_backend_optimization_level': 0},
      **options,
  )
