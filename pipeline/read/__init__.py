"""The read stage: files of image-text pairs, in any common format, as numbered rows."""
