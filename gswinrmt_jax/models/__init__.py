"""Flax modules that arrange the equations into models."""
