"""Training: train loop, train step, optimizer, stopping and resuming."""
