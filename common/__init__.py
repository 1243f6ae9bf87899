"""Code shared by the pipeline and the trainer: configuration, user errors, image decoding, files and stores.

Imports no other package of this repository but `schemas`.
"""
