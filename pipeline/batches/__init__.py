"""Full batches: the rows of several shards share those of a network, without all their images in memory.

batcher.py   rows wait for a network until a batch is full
networks.py  the networks that answer: grounder, and the towers of CLIP
row.py       what a row asks of them
shards.py    shards, from PARSED tables to SCORED ones (scored.py)
"""
