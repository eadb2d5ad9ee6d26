"""Predicts with, converts and exports trained weights; computes label maps."""
