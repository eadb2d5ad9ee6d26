"""Uses of trained weights: prediction, conversion, export, label maps."""
