"""The miniature world, the models trained on it, and the demo that runs the pipeline over it."""
