"""Checkpoints of a training state: written, kept, verified, restored."""
