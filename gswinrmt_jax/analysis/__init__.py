"""Measures the internals of trained models over a data set."""
