"""Code shared by the pipeline and the trainer: configuration, user errors, image decoding, files and stores.

The only other package of this repository that it imports is `schemas`.
"""
