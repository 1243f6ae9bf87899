"""Training data: from shards on disk or in a store to batches of tensors.

`index` finds the samples in the tars (`tar` parses headers, `shards` reads bytes), `order` shuffles them,
`layouts` reads each one into the types of `samples`, and `batch_builder` crops (`crops`), tokenizes and collates
them. `loader` does this in several processes and yields `trainer.batch.Batch`. `probe` checks some samples at the
start, `subreddits` splits the names in RedCaps captions, and `preprocess` prepares images for evaluation and
inference. `config` holds the settings.
"""
