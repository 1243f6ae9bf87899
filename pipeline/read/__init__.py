"""The read stage: rows of image-text pairs from files in any common format."""
