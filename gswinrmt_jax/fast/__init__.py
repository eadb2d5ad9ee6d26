"""Faster implementations of the equations, a file for each kind of device.

Importing the package registers them. Each was measured on its device; what is
only counted in a compiled program stays out.
"""

from gswinrmt_jax.fast import cpu as cpu
