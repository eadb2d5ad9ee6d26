"""Reads data sets and yields batches of uint8 images.

Nothing here imports JAX. The subpackage `prepare` writes data sets.
"""
