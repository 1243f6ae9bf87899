"""The test splits of the 20 data sets of zero-shot classification, from plain folders and from the official files."""
