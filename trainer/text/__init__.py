"""Text processing: tokenizers, and dependency parses of captions aligned with their tokens.

`base` is the interface of tokenizers, `tokenizer` CLIP's byte-pair encoding, `fast_tokenizer` those of transformers,
`offsets` maps characters of cleaned text back to the original, `syntax` aligns the words
of a parse with tokens and batches them, and `relations` lists the dependency labels.
"""
