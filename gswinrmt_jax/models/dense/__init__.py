"""Dense prediction: necks and heads on the feature maps of a backbone."""
