"""How fast training and inference are."""
