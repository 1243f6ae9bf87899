"""Training data: from shards on disk or in a store to batches of tensors.

`listing` lists the shards with their manifests. `index` holds the places of the samples, which `indexing` takes from
the pipeline (`index_files`) or from the tars (`headers`), on one rank for all (`loader`). `order` shuffles the
samples with a computed `permutation`, `runs` reads them in runs and `shards` their bytes,
`layouts` reads each one into the types of `samples`, and `batch_builder` crops (`crops`), tokenizes and collates
them. `loader` does this in several processes and yields `trainer.batch.Batch`. `probe` checks some samples at the
start, `subreddits` splits the names in RedCaps captions, and `preprocess` prepares images for evaluation and
inference. `config` holds the settings.
"""
