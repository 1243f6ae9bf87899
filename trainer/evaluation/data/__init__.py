"""Data files of the evaluations. Commit 5af35950 has the scripts that built imagenet_tree.txt and words.json."""
