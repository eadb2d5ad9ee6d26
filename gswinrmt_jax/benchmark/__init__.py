"""How fast training is, and what its compiled program does."""
