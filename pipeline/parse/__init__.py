"""The parse stage: tokens, dependency tree, noun chunks and referring expressions of each caption."""
