"""The input and the output of a small job, which tests of examples share with those of the pipeline."""

from tests.pipeline.conftest import finished, tars

__all__ = ["finished", "tars"]
