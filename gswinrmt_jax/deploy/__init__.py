"""Using trained weights: prediction, conversion, export."""
