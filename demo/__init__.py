"""A synthetic world, miniature models trained on it, and a demo that runs the pipeline over it."""
