"""Declarations of the tables, drop reasons and files of the pipeline.

Imports no other package of this repository.
"""
