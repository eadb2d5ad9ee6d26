"""Training and evaluation: the only part that knows both models and data."""
