"""What a model does with an image, and what trained models do with many."""
