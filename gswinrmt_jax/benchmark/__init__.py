"""Measures the speed of training and inference."""
