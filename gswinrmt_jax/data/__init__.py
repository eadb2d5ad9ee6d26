"""Data sets in, batches of uint8 images out; nothing here imports jax."""
