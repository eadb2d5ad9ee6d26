"""Checkpoints of the train state: saving, keeping, checksums, restoring."""
