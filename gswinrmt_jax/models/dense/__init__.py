"""Dense prediction: necks and heads over the maps of a backbone."""
