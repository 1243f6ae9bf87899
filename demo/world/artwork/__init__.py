"""Subsets of three emoji sets as SVG bodies. Licences and credits are in LICENSES.md."""
