"""Text processing: the byte-pair tokenizer, and dependency parses of captions aligned with its tokens.

`tokenizer` encodes texts, `offsets` maps characters of cleaned text back to the original, `syntax` aligns the words
of a parse with tokens and batches them, and `relations` lists the dependency labels.
"""
