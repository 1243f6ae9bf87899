"""A synthetic world of emoji scenes with known boxes and captions."""
