"""The training of a model: build it, run the steps, and save the results."""
