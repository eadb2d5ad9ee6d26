"""Augmentation on the device: pure functions of a key and a batch."""
