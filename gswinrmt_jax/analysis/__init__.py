"""What trained models do inside, measured over a data set."""
