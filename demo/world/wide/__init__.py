"""A wider world for training: more attributes, general words, counts, layouts, backgrounds and kinds of captions."""
