"""Checkpoints of the train state: saving, retention, checksums, restoring."""
