"""What a training run reads: data sets in, batches of uint8 images out.

Nothing here imports JAX. `prepare` holds the tool that writes data sets.
"""
