"""Stage `read`: rows of image-text pairs from files in any common format."""
