"""Training: the loop, the update, the optimizer, stopping and resuming."""
