"""Flax modules that arrange the equations into models."""

from gswinrmt_jax import fast as fast  # Its forms are what a model runs.
