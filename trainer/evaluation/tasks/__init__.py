"""The evaluations of the papers, one task per file, over pure functions of embeddings."""
