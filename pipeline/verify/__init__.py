"""Check the shards of a finished output: hashes, counts, schemas, images, and the agreement of the formats."""
