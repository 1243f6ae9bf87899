"""Write the outputs of frozen towers once, so that heads are trained on them in seconds: `hypergrit features`."""
