"""The download stage: images over HTTP, verified, resized, and accounted for row by row."""
