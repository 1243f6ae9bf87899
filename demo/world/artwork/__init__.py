"""Committed subsets of three emoji sets as SVG bodies; licences and credits in LICENSES.md."""
