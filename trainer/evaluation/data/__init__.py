"""Data files of the evaluations, and the scripts that build them."""
