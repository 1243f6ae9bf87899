"""The parse stage: tokens, noun chunks and referring expressions of each caption, by spaCy."""
