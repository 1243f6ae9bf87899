"""The command line of HyperGRIT, above the packages `pipeline` and `trainer`: `hypergrit VERB` (hypergrit/__main__.py)."""
