"""The write stage: the output files of a shard, and the manifest that commits them."""
