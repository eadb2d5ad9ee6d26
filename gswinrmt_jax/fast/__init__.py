"""Faster implementations of the equations, one file per kind of device.

Importing the package registers them. Each was measured to be faster on its
device; savings that were only counted in a compiled program do not qualify.
"""

from gswinrmt_jax.fast import cpu as cpu
